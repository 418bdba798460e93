"""Segment: 2310 patches of outdoor images described by 19 numbers, 7 kinds (Statlog)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Segment from LIBSVM text. There is no test file: a fixed fifth of each class is the test set.

    Test samples may exceed [0, 1]. ``verify`` is unused.
    """
    return load_tabular("segment", folder, test=False, valid=valid, seed=seed)
