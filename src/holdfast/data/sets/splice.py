"""Splice: 1000 and 2175 stretches of 60 bases of DNA, with a splice junction or without (Statlog)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Splice from LIBSVM text; test samples may exceed [0, 1]. ``verify`` is unused."""
    return load_tabular("splice", folder, valid=valid, seed=seed)
