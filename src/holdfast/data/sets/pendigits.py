"""Pendigits: 7494 and 3498 digits written with a pen, 8 points each (Alimoglu and Alpaydin 1996)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Pendigits from LIBSVM text; test samples may exceed [0, 1]. ``verify`` is unused."""
    return load_tabular("pendigits", folder, valid=valid, seed=seed)
