"""LIBSVM text: PATH for training and PATH.t for test, one 'label index:value ...' a line (Chang and Lin 2011)."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    span = np.where(high > low, high - low, 1)  # a constant feature becomes 0
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


@dataclass(frozen=True, eq=False)
class _Text:
    """What one file holds: a label, the indices from 0 and the values of each line, and the numbers of the lines."""

    path: Path
    y: _Array
    rows: list[tuple[_Array, _Array]]
    lines: list[int]

    @property
    def width(self) -> int:
        """The largest index."""
        return max((int(index[-1]) + 1 for index, _ in self.rows if len(index)), default=0)

    def dense(self, width: int) -> _Array:
        """The values as a table, zeros where none is given."""
        if not 0 < len(self.rows) * width <= _VALUES:
            raise ValueError(
                f"{self.path} has {len(self.rows)} lines and {width} features but 1 to {_VALUES} values are held in "
                "memory; give a smaller set"
            )
        table = np.zeros((len(self.rows), width))
        for row, (index, values) in zip(table, self.rows, strict=True):
            row[index.astype(np.int64)] = values
        return table

    def encoded(self, classes: _Array) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The position of each label among the classes."""
        known = set(classes.tolist())
        for label, line in zip(self.y.tolist(), self.lines, strict=True):
            if label not in known:
                raise ValueError(f"line {line} of {self.path} has the label {label:.0f}, which no training line has")
        return np.searchsorted(classes, self.y).astype(np.int64)


def _read(path: Path) -> _Text:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes but at most {_LARGEST} are read; give a smaller set")
    labels, rows, lines = [], [], []
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.partition(b"#")[0].strip()
            if text:
                numbers = _numbers(text, f"line {number} of {path}")
                labels.append(numbers[0])
                rows.append((numbers[1::2] - 1, numbers[2::2]))
                lines.append(number)
    return _Text(path, np.array(labels), rows, lines)


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
