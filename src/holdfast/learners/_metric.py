"""What all learners share: a linear map, the metric that it defines, and the samples they accept."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[int, float], None]

_LARGEST, _LEAST = 1e15, 1e-15  # learners compute squared distances in float32, which spans 1e-38 to 1e38
KNOWN = "a learner such as ARML(), a positive semi-definite matrix, or None for Euclidean"


@dataclass(frozen=True, eq=False)
class Metric:
    """The Mahalanobis distance of two points, ||L(u - v)||; scikit-learn's neighbors take it as their ``metric``."""

    components: Array

    def __call__(self, u: Array, v: Array) -> float:
        """The distance, not squared."""
        return float(np.linalg.norm(self.components @ (np.asarray(u) - np.asarray(v))))


class Learner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A linear map ``components_`` whose Euclidean distance is the metric: M = components_.T @ components_."""

    components_: Array

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Array) -> Array:  # noqa: N803
        """The points where their Euclidean distance is the learned one, (n, n_components)."""
        check_is_fitted(self)
        points: Array = finite(validate_data(self, X, dtype=np.float64, ensure_all_finite=False, reset=False))
        return points @ self.components_.T

    def get_metric(self) -> Metric:
        """The distance of two points as a function."""
        check_is_fitted(self)
        return Metric(self.components_)


class Supervised(Learner):
    """A learner that needs labels."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def finite(points: Array) -> Array:
    """The points, or one sentence if some are no numbers."""
    if not np.isfinite(points).all():
        raise ValueError("X contains NaN or inf; remove or fill in such values first")
    return points


def labelled(learner: BaseEstimator, points: Any, y: Any) -> tuple[Array, Array, Array]:
    """Points in float64, labels numbered from 0, and the classes; refused when there is nothing to tell apart."""
    points, y = validate_data(learner, points, y, dtype=np.float64, ensure_all_finite=False)
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class, {classes[0]}, but at least two are needed to tell points apart")
    largest = np.abs(finite(points)).max()
    if largest > _LARGEST:
        raise ValueError(f"points reach {largest:.3g}, whose squares overflow; scale them first, e.g. to [0, 1]")
    spread = np.ptp(points, axis=0).max()
    if 0 < spread < _LEAST:
        raise ValueError(f"points span {spread:.3g}, whose square underflows; scale them first, e.g. to [0, 1]")
    return points, labels, classes


def paired(learner: BaseEstimator, points: Any, y: Any) -> tuple[Array, Array, Array]:
    """As :func:`labelled`, and refused where no class has two points, which a metric could bring together."""
    points, labels, classes = labelled(learner, points, y)
    if np.bincount(labels).max() < 2:
        name = type(learner).__name__
        raise ValueError(f"every class has one point, but {name} needs pairs of one class; add points")
    return points, labels, classes


def centred(points: Array) -> Tensor:
    """The points in float32 around their mean: no metric sees where they lie, but float32 does."""
    return torch.from_numpy((points - points.mean(0)).astype(np.float32))


def chosen_device(name: str | torch.device | None) -> torch.device:
    """The device of this name; a GPU where there is one when no name is given. One that cannot compute is refused."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"device is {name!r} but no such device with float64 can be used here; give 'cpu' or leave it out"
        ) from error
    return device


def whole(**given: Any) -> None:
    """Refuse the first parameter that is not a whole number of one or more."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
            raise ValueError(f"{name} is {value!r} but must be a whole number, 1 or more")


def positive(**given: Any) -> None:
    """Refuse the first parameter that is not a positive number."""
    for name, value in given.items():
        if not (number(value) and value > 0):
            raise ValueError(f"{name} is {value!r} but must be a positive number")


def tolerance(tol: Any) -> None:
    """Refuse a tolerance that is no number; a negative one is never met, so that all iterations are run."""
    if not number(tol) or isnan(tol):
        raise ValueError(f"tol is {tol!r} but must be a number")


def number(value: Any) -> bool:
    """Whether a parameter is a real number; a switch is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def factor(matrix: Any) -> Array:
    """L with L.T @ L = matrix, (d, d); one sentence if the matrix is no metric."""
    try:
        matrix = np.asarray(matrix, dtype=None if np.iscomplexobj(matrix) else np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        given = " ".join(reprlib.repr(matrix).split())
        raise ValueError(f"metric is {given} but must be {KNOWN}") from error
    if np.iscomplexobj(matrix):
        raise ValueError("the matrix holds complex numbers but a metric needs real ones")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the matrix has shape {matrix.shape} but a metric needs a square one")
    if not np.isfinite(matrix).all():
        raise ValueError("the matrix contains NaN or inf")
    size = np.abs(matrix).max(initial=0.0)
    if size and not 1e-120 < size < 1e120:
        raise ValueError(f"the matrix reaches {size:.3g}; scale it to a size near 1, which changes no neighbor")
    if np.abs(matrix - matrix.T).max(initial=0.0) > 1e-8 * size:
        raise ValueError("the matrix is not symmetric; a metric needs M = M.T")
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values.min(initial=0.0) < -1e-8 * size * len(matrix):
        raise ValueError(
            f"the matrix has the eigenvalue {values.min():.3g} but a metric must be positive semi-definite"
        )
    root: Array = np.sqrt(values.clip(0))[:, None] * vectors.T
    return root
