"""LIBSVM text: PATH for training and PATH.t for test, one 'label index:value ...' a line (Chang and Lin 2011)."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.data.split import DataSet, data_set

TAKES = "PATH"

_Array = np.ndarray[Any, np.dtype[np.float64]]
_NUMBER = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?"
_LABEL = re.compile(rb"[+-]?\d{1,15}(?:\.0*)?")
_PAIR = re.compile(rb"\d{1,9}:" + _NUMBER)
_LINE = re.compile(_LABEL.pattern + rb"(?:[ \t]+" + _PAIR.pattern + rb")*")
_VALUES = 1 << 27  # of one part, after absent values are filled in with zeros; 1 GiB
_LARGEST = 1 << 31  # bytes of text
_LINE_BYTES, _LINES = 1 << 24, 1 << 24  # parsed, a line takes ten times its bytes; kept, a short one does


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """The two files at ``folder``, scaled so that each feature spans [0, 1] on the training file.

    Labels are numbered in ascending order. Where a test value lies beyond the training range it is clipped to [0, 1]:
    threats and models here live in that box, while the code of ARML (Wang et al. 2021) leaves such values outside.
    The scaling sees the validation samples, as they come from the same file. Nothing is published as a checksum, so
    ``verify`` is moot.
    """
    train_path, test_path = _paths(folder)
    train, test = _read(train_path), _read(test_path)
    width = max(train.width, test.width)
    x_train, x_test = train.dense(width), test.dense(width)
    low, high = x_train.min(axis=0), x_train.max(axis=0)
    with np.errstate(over="ignore"):
        span = np.where(high > low, high - low, 1)  # a constant feature becomes 0
    if not np.isfinite(span).all():
        which = int(np.argmin(np.isfinite(span))) + 1
        raise ValueError(f"{train_path} has values of feature {which} farther apart than the largest float; repair it")
    classes = np.unique(train.y)
    parts = {
        part: (
            torch.from_numpy(((x - low) / span).clip(0, 1).astype(np.float32)),
            torch.from_numpy(text.encoded(classes)),
        )
        for part, x, text in (("train", x_train, train), ("test", x_test, test))
    }
    names = [f"{label:.0f}" for label in classes]
    return data_set(f"libsvm:{train_path.name}", parts, names, valid=valid, seed=seed)


def _paths(folder: Path | None) -> tuple[Path, Path]:
    train, test = Path(folder or "PATH"), Path(f"{folder or 'PATH'}.t")
    if not (train.is_file() and test.is_file()):
        raise FileNotFoundError(
            f"libsvm needs the files {train} and {test}, as text; download a data set with its .t file from the LIBSVM "
            "data page of Chang and Lin, unpack both with bunzip2 and name them libsvm:PATH"
        )
    return train, test


def _floats() -> array[float]:
    return array("d")


def _whole() -> array[int]:
    return array("q")


@dataclass(frozen=True, eq=False)
class _Text:
    """What one file holds: the labels, the indices from 0 and values of all lines one after another, where each line
    ends among them, and the numbers of the lines. Flat: an object for each line would take ten times the memory."""

    path: Path
    labels: array[float] = field(default_factory=_floats)
    index: array[int] = field(default_factory=_whole)
    values: array[float] = field(default_factory=_floats)
    ends: array[int] = field(default_factory=_whole)
    lines: array[int] = field(default_factory=_whole)

    @property
    def y(self) -> _Array:
        """The labels."""
        return np.array(self.labels)

    @property
    def width(self) -> int:
        """The largest index."""
        return max(self.index, default=-1) + 1

    def dense(self, width: int) -> _Array:
        """The values as a table, zeros where none is given."""
        if not 0 < len(self.lines) * width <= _VALUES:
            raise ValueError(
                f"{self.path} has {len(self.lines)} lines and {width} features but 1 to {_VALUES} values are held in "
                "memory; give a smaller set"
            )
        table = np.zeros((len(self.lines), width))
        rows = np.repeat(np.arange(len(self.lines)), np.diff(np.array(self.ends), prepend=0))
        table[rows, np.array(self.index)] = np.array(self.values)
        return table

    def encoded(self, classes: _Array) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The position of each label among the classes."""
        known = set(classes.tolist())
        for label, line in zip(self.labels, self.lines, strict=True):
            if label not in known:
                raise ValueError(f"line {line} of {self.path} has the label {label:.0f}, which no training line has")
        return np.searchsorted(classes, self.y).astype(np.int64)


def _read(path: Path) -> _Text:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes but at most {_LARGEST} are read; give a smaller set")
    held = _Text(path)
    for number, line in _lines(path):
        text = line.partition(b"#")[0].strip()
        if text:
            numbers = _numbers(text, f"line {number} of {path}")
            held.labels.append(numbers[0])
            held.index.extend((numbers[1::2] - 1).astype(np.int64).tolist())
            held.values.extend(numbers[2::2].tolist())
            held.ends.append(len(held.values))
            held.lines.append(number)
    return held


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as stream:
        for number in range(1, _LINES + 1):
            line = stream.readline(_LINE_BYTES + 1)
            if len(line) > _LINE_BYTES:
                raise ValueError(f"line {number} of {path} has more than {_LINE_BYTES} bytes; give a smaller set")
            if not line:
                return
            yield number, line
        raise ValueError(f"{path} has {_LINES} lines or more; give a smaller set")


def _numbers(text: bytes, where: str) -> _Array:
    """The label, then index and value in turn."""
    if not _LINE.fullmatch(text):
        raise ValueError(f"{where} {_malformed(text)}")
    numbers = np.array(text.replace(b":", b" ").split(), dtype=np.float64)
    index, values = numbers[1::2], numbers[2::2]
    if not np.isfinite(values).all():
        raise ValueError(f"{where} has a value beyond the largest float; repair or remove the line")
    if (index < 1).any():
        raise ValueError(f"{where} has the index 0, but indices start at 1; add 1 to each")
    if (np.diff(index) <= 0).any():
        place = int(np.argmax(np.diff(index) <= 0))
        raise ValueError(
            f"{where} has the index {index[place + 1]:.0f} after {index[place]:.0f}; "
            "give each index once, in ascending order"
        )
    return numbers


def _malformed(text: bytes) -> str:
    first, *rest = text.split()
    if not _LABEL.fullmatch(first):
        return f"starts with {_shown(first)} where a label, a whole number, is needed"
    bad = next((token for token in rest if not _PAIR.fullmatch(token)), b"")
    return f"has {_shown(bad)} where index:value with a finite number is needed"


def _shown(token: bytes) -> str:
    return repr(token[:40].decode("ascii", errors="replace"))
