"""Letter: 15000 and 5000 capital letters described by 16 numbers (Frey and Slate 1991)."""

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load Letter from LIBSVM text; test samples may exceed [0, 1]. ``verify`` is unused."""
    return load_tabular("letter", folder, valid=valid, seed=seed)
