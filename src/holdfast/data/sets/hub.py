"""Image data sets of the Hugging Face hub by name and commit, hub:NAME@REVISION; needs the extra 'hub'."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from holdfast.data.readers.images import Picture, decode_parts
from holdfast.data.split import DataSet, data_set

TAKES = "NAME@REVISION"

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([0-9a-f]{40})", re.ASCII)
_SAFE = 4  # the first release of datasets that does not run scripts
_IMAGE, _LABEL = ("image", "img"), ("label", "labels", "fine_label")


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load the data set that ``folder`` names as OWNER/NAME@COMMIT; the package ``datasets`` caches it.

    The commit has all 40 digits, because branches and tags can move. It also serves as the checksum, so ``verify`` is
    unused. A split 'validation' is used for validation, or as the test set if there is no 'test'. Images are decoded by
    holdfast, which accepts JPEG, PNG, BMP and PPM.
    """
    given = folder.as_posix() if folder else ""
    pinned = _PINNED.fullmatch(given)
    if not pinned:
        raise ValueError(f"hub:{given} does not name a data set; write hub:OWNER/NAME@ and a commit of 40 hex digits")
    name, revision = pinned.groups()
    if Path(name).exists():
        raise ValueError(f"hub:{given} would be read from the folder {name} here instead; start in another folder")
    library = _library(given)
    try:
        parts = library.load_dataset(name, revision=revision)
    except Exception as error:  # the network, the hub and every file format raise different exceptions
        reason = " ".join(str(error).split())[:200]
        raise FileNotFoundError(
            f"hub:{given} could not be had ({reason}); check the name, the commit and the network, or run once where "
            "there is one: it is kept in the cache"
        ) from error
    return _adapted(f"hub:{given}", parts, library, valid, seed)


def _library(given: str) -> ModuleType:
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise ImportError(
            f"hub:{given} needs the package datasets, which is not installed; run: pip install 'holdfast[hub]'"
        ) from error
    major = str(getattr(library, "__version__", "")).partition(".")[0]
    if not major.isdecimal() or int(major) < _SAFE:
        raise ImportError(
            f"hub:{given} needs datasets {_SAFE} or later, as earlier ones run programs that a data set brings along; "
            "run: pip install 'holdfast[hub]'"
        )
    return library


def _adapted(name: str, parts: dict[str, Any], library: ModuleType, valid: float | int, seed: int) -> DataSet:
    given = {"test" if part == "validation" and "test" not in parts else part: rows for part, rows in parts.items()}
    if not {"train", "test"} <= given.keys():
        raise ValueError(f"{name} has the parts {', '.join(parts)} but train and test (or validation) are needed")
    held = {new: given[old] for new, old in (("train",) * 2, ("test",) * 2, ("valid", "validation")) if old in given}
    image, label = (_column(name, held["train"], known) for known in (_IMAGE, _LABEL))
    labels = {part: _labels(f"{name} {part}", list(rows[label])) for part, rows in held.items()}
    pixels = decode_parts({part: _pictures(f"{name} {part}", rows, image, library) for part, rows in held.items()})
    numbers = range(len(set(labels["train"].tolist())))
    classes = getattr(held["train"].features[label], "names", None) or [str(one) for one in numbers]
    return data_set(name, {part: (pixels[part], labels[part]) for part in held}, classes, valid=valid, seed=seed)


def _column(name: str, rows: Any, known: tuple[str, ...]) -> str:
    found = next((column for column in known if column in rows.features), None)
    if found is None:
        raise ValueError(
            f"{name} has the columns {', '.join(rows.features)} but one called {' or '.join(known)} is needed"
        )
    return found


def _pictures(name: str, rows: Any, image: str, library: ModuleType) -> list[Picture]:
    try:
        encoded = list(rows.cast_column(image, library.Image(decode=False))[image])
    except Exception as error:  # for example a column of numbers; the package raises various exceptions
        raise ValueError(f"{name} has a column {image!r} that does not hold images; choose another data set") from error
    found = [one.get("bytes") if isinstance(one, dict) else None for one in encoded]
    pictures = [Picture(f"image {i} of {name}", one) for i, one in enumerate(found) if isinstance(one, bytes) and one]
    if len(pictures) < len(encoded):  # paths are not followed, because they may lead anywhere
        raise ValueError(
            f"{name} has {len(encoded) - len(pictures)} images that are not stored inside it; name the commit of its "
            "conversion to Parquet, or download it and use image-folder:PATH"
        )
    return pictures


def _labels(name: str, labels: list[Any]) -> torch.Tensor:
    if not all(isinstance(label, int) and abs(label) < 1 << 63 for label in labels):
        raise ValueError(f"{name} has labels that are not whole numbers of 64 bits; choose one for classification")
    return torch.tensor(labels, dtype=torch.int64)
