"""USPS: 7291 and 2007 handwritten digits of 16x16 pixels (Hull 1994)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load USPS from LIBSVM text; test samples may exceed [0, 1]. ``verify`` is unused."""
    return load_tabular("usps", folder, valid=valid, seed=seed)
