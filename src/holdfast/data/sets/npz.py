"""Your own arrays: x_train, y_train, x_test, y_test and optionally x_valid, y_valid in one .npz file."""

from pathlib import Path

import torch
from torch import Tensor

from holdfast.data.readers.npz import existing, read
from holdfast.data.split import DataSet, EvaluationSet, checked, data_set

TAKES = "PATH"

_TRAIN, _TEST, _VALID = ("x_train", "y_train"), ("x_test", "y_test"), ("x_valid", "y_valid")


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load the arrays of the .npz file at ``folder``; x is (n, channels, height, width) or (n, features).

    Without x_valid and y_valid, ``valid`` training samples are arrays out for validation. ``verify`` is unused.
    """
    path = existing(folder)
    arrays = read(path, (*_TRAIN, *_TEST), _VALID)
    classes = _classes(arrays["y_train"])
    parts = {
        part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "valid", "test") if f"x_{part}" in arrays
    }
    return data_set(f"npz:{path.name}", parts, classes, valid=valid, seed=seed)


def load_test(folder: Path | None, *, samples: int | None = None) -> EvaluationSet:
    """Load x_test and y_test of the .npz file at ``folder``; the classes are known only if it also has y_train."""
    path = existing(folder)
    arrays = read(path, _TEST, ("y_train",))
    known = _classes(arrays["y_train"]) if "y_train" in arrays else None
    x, y = arrays["x_test"], arrays["y_test"]
    split = checked(x, y, classes=None if known is None else len(known), part=f"npz:{path.name} test")
    return EvaluationSet(f"npz:{path.name}", split.spread(samples), known)


def _classes(y: Tensor) -> tuple[str, ...]:
    return tuple(map(str, range(len(torch.unique(y)))))  # a gap in the labels makes the largest label out of range
