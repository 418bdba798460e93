"""Segment: 2310 patches of outdoor images described by 19 numbers, 7 kinds (Statlog)."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.sets._tabular import load_tabular
from holdfast.data.split import DataSet


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Segment from LIBSVM text, which has no test part: a fifth of each class is set aside, whatever the seed.

    Test samples may leave [0, 1]. No checksum is published, so ``verify`` is moot.
    """
    return load_tabular("segment", folder, test=False, valid=valid, seed=seed)
