"""The estimator that all metric learners extend, and the validation of their inputs and parameters."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[int, float], None]

_LARGEST, _LEAST = 1e15, 1e-15  # learners compute squared distances in float32, whose range is 1e-38 to 1e38


@dataclass(frozen=True, eq=False)
class Metric:
    """The Mahalanobis distance ||L (u - v)||, usable as the ``metric`` of scikit-learn's neighbors estimators."""

    components: Array

    def __call__(self, u: Array, v: Array) -> float:
        return float(np.linalg.norm(self.components @ (np.asarray(u) - np.asarray(v))))


class Learner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A metric learner: ``components_`` maps points so that Euclidean distances are the learned ones.

    The Mahalanobis matrix is M = components_.T @ components_.
    """

    components_: Array

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Array) -> Array:  # noqa: N803
        """Map points to (n, n_components) points whose Euclidean distances are the learned distances."""
        check_is_fitted(self)
        points: Array = finite(validate_data(self, X, dtype=np.float64, ensure_all_finite=False, reset=False))
        return points @ self.components_.T

    def get_metric(self) -> Metric:
        """Return the learned distance as a function of two points."""
        check_is_fitted(self)
        return Metric(self.components_)


class Supervised(Learner):
    """A metric learner that needs labels."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def finite(points: Array) -> Array:
    """Return the points; raise ValueError if they contain NaN or infinite values."""
    if not np.isfinite(points).all():
        raise ValueError("X contains NaN or inf; remove or fill in such values first")
    return points


def check_labeled(learner: BaseEstimator, points: Any, y: Any) -> tuple[Array, Array, Array]:
    """Validate points and labels; return points in float64, labels numbered from 0, and the classes."""
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


def check_pairs(learner: BaseEstimator, points: Any, y: Any) -> tuple[Array, Array, Array]:
    """Validate as :func:`check_labeled` does, and raise ValueError if no class has two points."""
    points, labels, classes = check_labeled(learner, points, y)
    if np.bincount(labels).max() < 2:
        name = type(learner).__name__
        raise ValueError(f"every class has one point, but {name} needs pairs of one class; add points")
    return points, labels, classes


def centered(points: Array) -> Tensor:
    """Return the points minus their mean in float32: distances do not change, and float32 represents them better."""
    return torch.from_numpy((points - points.mean(0)).astype(np.float32))


def choose_device(name: str | torch.device | None) -> torch.device:
    """Return the named device, by default a GPU if there is one; raise ValueError if it has no float64."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"device is {name!r} but no such device with float64 can be used here; give 'cpu' or leave it out"
        ) from error
    return device


def warn_not_converged(message: str, stacklevel: int) -> None:
    """Warn that fitting stopped early; ``stacklevel`` counts from the caller, as that of warnings.warn does."""
    warnings.warn(f"{message}; raise max_iter or tol", ConvergenceWarning, stacklevel=stacklevel + 1)


def check_positive_int(**parameters: Any) -> None:
    """Raise ValueError for the first parameter that is not a whole number of at least one."""
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
            raise ValueError(f"{name} is {value!r} but must be a whole number, 1 or more")


def check_positive(**parameters: Any) -> None:
    """Raise ValueError for the first parameter that is not a positive number."""
    for name, value in parameters.items():
        if not (is_number(value) and value > 0):
            raise ValueError(f"{name} is {value!r} but must be a positive number")


def check_tolerance(tol: Any) -> None:
    """Raise ValueError if a tolerance is not a number. A negative one is allowed: all iterations are then run."""
    if not is_number(tol) or isnan(tol):
        raise ValueError(f"tol is {tol!r} but must be a number")


def is_number(value: Any) -> bool:
    """Return whether a parameter is a real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)
