"""Your own images: PATH/train and PATH/test (or PATH/val) with one folder of images for each class."""

from collections.abc import Mapping
from pathlib import Path

import torch

from holdfast.data.readers.files import listed, plain_files
from holdfast.data.readers.images import decode_parts, of_files
from holdfast.data.split import DataSet, EvaluationSet, Split, checked, data_set, spread

TAKES = "PATH"


def load(
    folder: Path | None, *, valid: float | int, seed: int, verify: bool = True, size: tuple[int, int] | None = None
) -> DataSet:
    """Load the JPEG, PNG, BMP and PPM images under ``folder``, all of one size; names of folders are the classes.

    If there are both test and val, val is the validation set; val alone is the test set. Hidden files and those created
    by file managers are ignored. Any other file that is not such an image is an error, because silently skipping a
    sample would change results. ``verify`` is unused.
    """
    parts = _parts(folder)
    top = parts["train"].parent
    labels = _labels(parts["train"], top)
    found = {part: _labeled(place, top, labels) for part, place in parts.items()}
    pixels = decode_parts({part: of_files([path for path, _ in pairs]) for part, pairs in found.items()}, size)
    filled = {part: (pixels[part], torch.tensor([label for _, label in pairs])) for part, pairs in found.items()}
    return data_set(f"image-folder:{top.name}", filled, list(labels), valid=valid, seed=seed)


def load_test(folder: Path | None, *, samples: int | None = None, size: tuple[int, int] | None = None) -> EvaluationSet:
    """Load the images of PATH/test (or PATH/val), or of PATH itself if it contains the folders of the classes.

    The classes are those of PATH/train if there is one. Only ``samples`` images are decoded.
    """
    if folder is None or not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; name a folder of images as image-folder:PATH")
    here = {path.name: path for path in listed(folder, folder) if path.is_dir()}
    if "train" in here and not {"test", "val"} & here.keys():
        raise FileNotFoundError(f"{folder} holds train but neither test nor val; add the images to evaluate on")
    place = here.get("test") or here.get("val") or folder
    labels = _labels(here.get("train", place), folder)
    pairs = _labeled(place, folder, labels)
    which = spread(len(pairs), samples)
    paths, y = zip(*(pairs[i] for i in which.tolist()), strict=True)
    x = decode_parts({"test": of_files(paths)}, size)["test"]
    name = f"image-folder:{folder.name}"
    split = checked(x, torch.tensor(y), classes=len(labels), part=f"{name} test")
    return EvaluationSet(name, Split(split.x, split.y, which), tuple(labels))


def _parts(folder: Path | None) -> dict[str, Path]:
    here = {path.name: path for path in listed(folder, folder) if path.is_dir()} if folder and folder.is_dir() else {}
    test = here.get("test") or here.get("val")
    if "train" not in here or test is None:
        raise FileNotFoundError(
            f"image-folder needs {folder}/train/CLASS/IMAGE and {folder}/test/CLASS/IMAGE (or val for test) but found "
            f"{', '.join(sorted(here)) or 'no folder'} there; lay your images out so and name them image-folder:PATH"
        )
    held = {"valid": here["val"]} if {"test", "val"} <= here.keys() else {}
    return {"train": here["train"], "test": test, **held}


def _labels(place: Path, top: Path) -> dict[str, int]:
    return {path.name: label for label, path in enumerate(listed(place, top))}


def _labeled(place: Path, top: Path, labels: Mapping[str, int]) -> list[tuple[Path, int]]:
    pairs = []
    for path in listed(place, top):
        if not path.is_dir():
            raise ValueError(f"{path} is not a folder, but only a folder for each class may lie in {place}; move it")
        if path.name not in labels:
            raise ValueError(f"{path} is a class that the train folder does not have; add it there or remove it")
        pairs += [(file, labels[path.name]) for file in plain_files(path, top)]
    if not pairs:
        raise ValueError(f"{place} holds no class; add a folder of images for each class")
    return pairs
