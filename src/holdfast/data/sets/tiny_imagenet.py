"""Tiny-ImageNet: 200 classes of ImageNet at 64x64 pixels, 500 training and 50 test images each (Le and Yang 2015)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from holdfast.data.readers.files import content, find_folder, listed, missing, plain_files, searched
from holdfast.data.readers.images import decode, of_files
from holdfast.data.split import DataSet, data_set

_NAME, _SIZE = "tiny-imagenet-200", (64, 64)
_ENTRIES = ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
_FOLDERS = (_NAME, "tiny-imagenet")
_GET = (
    f"get it from Stanford's course CS231n with: curl -LO http://cs231n.stanford.edu/{_NAME}.zip, "
    f"then unzip {_NAME}.zip -d DIR"
)
_WNID = re.compile(r"n\d{8}")
_TEXT = 1 << 25  # bytes; the longest file, words.txt, has 3 MB
_COUNTS = {"training": 500, "test": 50}

_Labeled = list[tuple[Path, int]]


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Tiny-ImageNet from its published folders; the folder val is the test set.

    Classes of wnids.txt without a folder under train are left out, also of the test set. ``verify`` requires 500
    training and 50 test images of every other class. Grayscale images are converted to RGB.
    """
    top = find_folder(_FOLDERS, _ENTRIES, folder)
    if top is None:
        needed = f"{', '.join(_ENTRIES)} together"
        raise FileNotFoundError(missing("tiny-imagenet", needed, searched(_FOLDERS, folder), _GET))
    labels = {wnid: label for label, wnid in enumerate(_present(top))}
    train, test = _train(top, labels), _test(top, labels)
    if verify:
        _count(top, labels, {"training": train, "test": test})
    names = _names(top, labels)
    return data_set("tiny-imagenet", {"train": _read(train), "test": _read(test)}, names, valid=valid, seed=seed)


def _present(top: Path) -> list[str]:
    here = {path.name for path in listed(top / "train", top)}
    known = _wnids(top)
    present = [wnid for wnid in known if wnid in here]
    if not present:
        raise ValueError(f"none of the classes of {top / 'wnids.txt'} has a folder in {top / 'train'}; unpack it again")
    if here - set(known):
        raise ValueError(f"{top / 'train' / min(here - set(known))} is no class of {top / 'wnids.txt'}; remove it")
    return present


def _wnids(top: Path) -> list[str]:
    known: dict[str, None] = {}  # a dict keeps the order and is searched in constant time, for very long files
    for where, line in _lines(top / "wnids.txt"):
        if not _WNID.fullmatch(line) or line in known:  # cannot be a path to another folder
            raise ValueError(f"{where} has {line[:80]!r} where a class such as n02124075, once, is allowed")
        known[line] = None
    return list(known)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the description and text of each non-empty line, which are untrusted."""
    text = content(path, _TEXT).decode("utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number} of {path}", line.strip()


def _train(top: Path, labels: Mapping[str, int]) -> _Labeled:
    found = []
    for wnid, label in labels.items():
        images = top / "train" / wnid / "images"
        if images not in listed(top / "train" / wnid, top):
            raise ValueError(f"{images} is not there; unpack {_NAME}.zip again")
        found += [(path, label) for path in plain_files(images, top)]
    return found


def _test(top: Path, labels: Mapping[str, int]) -> _Labeled:
    """Return the images of the present classes in the order of val_annotations.txt."""
    images = {path.name: path for path in plain_files(top / "val" / "images", top)}
    known, annotated = set(_wnids(top)), dict[str, str]()
    for where, line in _lines(top / "val" / "val_annotations.txt"):
        file, wnid = [*line.split("\t"), ""][:2]
        if wnid not in known or file in annotated:
            raise ValueError(f"{where} has {line[:80]!r} where a new image and a class of wnids.txt are allowed")
        if wnid in labels and file not in images:  # looked up by name, so that a path cannot lead elsewhere
            raise ValueError(f"{where} names {file[:80]!r}, which is not in {top / 'val' / 'images'}")
        annotated[file] = wnid
    if missing_lines := sorted(images.keys() - annotated.keys()):
        raise ValueError(f"{images[missing_lines[0]]} has no line in val_annotations.txt; unpack {_NAME}.zip again")
    return [(images[file], labels[wnid]) for file, wnid in annotated.items() if wnid in labels]


def _count(top: Path, labels: Mapping[str, int], parts: Mapping[str, _Labeled]) -> None:
    for part, found in parts.items():
        counts = torch.tensor([label for _, label in found]).bincount(minlength=len(labels)).tolist()
        for wnid, label in labels.items():
            if counts[label] != _COUNTS[part]:
                raise ValueError(
                    f"class {wnid} of {top} has {counts[label]} {part} images where {_COUNTS[part]} are published; "
                    "unpack it again, or say verify = false to use it as it is"
                )


def _names(top: Path, labels: Mapping[str, int]) -> list[str]:
    """Return the first word for each class, or its wnid if it has none or shares it with another class."""
    lines = _lines(top / "words.txt") if (top / "words.txt").is_file() else iter(())
    pairs = (line.partition("\t") for _, line in lines)
    words = {wnid: text.partition(",")[0] for wnid, _, text in pairs if wnid in labels}
    taken = list(words.values())
    return [words[wnid] if taken.count(words.get(wnid, "")) == 1 else wnid for wnid in labels]


def _read(found: _Labeled) -> tuple[Tensor, Tensor]:
    x, _ = decode(of_files([path for path, _ in found]), _SIZE)
    return x, torch.tensor([label for _, label in found])
