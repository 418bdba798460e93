"""The LIBSVM text format, one 'label index:value ...' per line, and the scaling of features to [0, 1]."""

from __future__ import annotations  # array[float] is a type, but not at run time before Python 3.12

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
_NUMBER = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?"
_LABEL = re.compile(rb"[+-]?\d{1,15}(?:\.0*)?")
_PAIR = re.compile(rb"\d{1,9}:" + _NUMBER)
_LINE = re.compile(_LABEL.pattern + rb"(?:[ \t]+" + _PAIR.pattern + rb")*")
_VALUES = 1 << 27  # per file, with absent values filled in as zeros: 1 GiB
_LARGEST = 1 << 31  # bytes per file
_LINE_BYTES, _LINES = 1 << 24, 1 << 24  # a line takes ten times its size while it is parsed


@dataclass(frozen=True, eq=False)
class Text:
    """The content of a file as flat arrays, which take a tenth of the memory of one object per line.

    ``index`` (from 0) and ``values`` are those of all lines concatenated, ``ends`` is the end of each line in them, and
    ``lines`` are the line numbers.
    """

    path: Path
    labels: array[float] = field(default_factory=lambda: array("d"))
    index: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    @property
    def y(self) -> Array:
        return np.array(self.labels)

    @property
    def width(self) -> int:
        """The number of features: the largest index."""
        return max(self.index, default=-1) + 1

    def dense(self, width: int) -> Array:
        """Return the values as a dense (lines, width) array."""
        if not 0 < len(self.lines) * width <= _VALUES:
            raise ValueError(
                f"{self.path} has {len(self.lines)} lines and {width} features but 1 to {_VALUES} values are held in "
                "memory; give a smaller set"
            )
        table = np.zeros((len(self.lines), width))
        rows = np.repeat(np.arange(len(self.lines)), np.diff(np.array(self.ends), prepend=0))
        table[rows, np.array(self.index)] = np.array(self.values)
        return table

    def encoded(self, classes: Array) -> Labels:
        """Return the position of each label in the sorted classes."""
        known = set(classes.tolist())
        for label, line in zip(self.labels, self.lines, strict=True):
            if label not in known:
                raise ValueError(f"line {line} of {self.path} has the label {label:.0f}, which no training line has")
        return np.searchsorted(classes, self.y).astype(np.int64)


def read(path: Path) -> Text:
    """Read a file; raise ValueError with the line number if a line is not in the LIBSVM format."""
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes but at most {_LARGEST} are read; give a smaller set")
    content = Text(path)
    for number, line in _lines(path):
        text = line.partition(b"#")[0].strip()
        if text:
            numbers = _numbers(text, f"line {number} of {path}")
            content.labels.append(numbers[0])
            content.index.extend((numbers[1::2] - 1).astype(np.int64).tolist())
            content.values.extend(numbers[2::2].tolist())
            content.ends.append(len(content.values))
            content.lines.append(number)
    return content


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


def _numbers(text: bytes, where: str) -> Array:
    """Return the label followed by alternating indices and values."""
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


def scaled(train: Array, *parts: Array, path: Path) -> list[Array]:
    """Scale the parts by the minimum and maximum of each feature in ``train``; constant features become 0 there."""
    low, high = train.min(axis=0), train.max(axis=0)
    with np.errstate(over="ignore"):
        span = np.where(high > low, high - low, 1)
    if not np.isfinite(span).all():
        which = int(np.argmin(np.isfinite(span))) + 1
        raise ValueError(f"{path} has values of feature {which} farther apart than the largest float; repair it")
    return [(part - low) / span for part in parts]
