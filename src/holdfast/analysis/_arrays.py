"""Checks of the arrays that analyses are given."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def features_of(values: ArrayLike, what: str) -> Array:
    """Features as a float array (n, d); anything else, NaN and infinite values are refused."""
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(
            f"{what} are {array.dtype} of shape {array.shape} but floats of shape (samples, dimensions) are needed; "
            "flatten or convert them"
        )
    bad = np.flatnonzero(~np.isfinite(array).all(1))
    if len(bad):
        raise ValueError(
            f"{what} hold NaN or infinite values in {len(bad)} of {len(array)} rows (the first is row {bad[0]}); "
            "check the model for overflow, or leave these samples out"
        )
    return array


def labels_of(values: ArrayLike, n: int, what: str) -> Array:
    """Integer labels (n,)."""
    array = np.asarray(values)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"{what} are {array.dtype} of shape {array.shape} but integers of shape ({n},) are needed, one per sample"
        )
    return array


def same_width(a: Array, b: Array, what: str) -> None:
    """Refuse features of two layers."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{what} have {a.shape[1]} and {b.shape[1]} dimensions; take both from the same layer")


def unit_rows(features: Array) -> Array:
    """Rows scaled to Euclidean length one, in float64; a row of zeros stays zero."""
    lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(features / np.where(lengths == 0, 1.0, lengths))
