"""Satimage: 4435 and 2000 neighborhoods of 3x3 pixels from a satellite, 6 kinds of soil (Statlog)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Satimage from LIBSVM text; test samples may exceed [0, 1]. ``verify`` is unused."""
    return load_tabular("satimage", folder, valid=valid, seed=seed)
