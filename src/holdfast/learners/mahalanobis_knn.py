"""A K-nearest-neighbor classifier under a learned metric or a given Mahalanobis matrix, with certified radii."""

import reprlib
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from holdfast.certify.neighbors import Neighbors
from holdfast.contracts import Certificate
from holdfast.learners._metric import Array, Metric, check_labeled, check_positive_int, choose_device, finite
from holdfast.mahalanobis import factor
from holdfast.neighbors import neighbors, vote
from holdfast.rng import Rng

_ALLOWED = "a learner such as ARML(), a positive semi-definite matrix, or None for Euclidean"


class MahalanobisKNN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predict by the vote of the ``n_neighbors`` nearest training points.

    ``metric`` is a metric learner, a positive semi-definite matrix M, or None for the Euclidean metric. A learner is
    cloned and fitted with the training points; wrap a fitted one in scikit-learn's ``FrozenEstimator`` to use it as it
    is. ``n_neighbors`` is odd, as certificates need it. Of equally distant points the first in the training set is
    nearer, and of classes with equally many votes the first in ``classes_`` is predicted.
    """

    def __init__(self, metric: Any = None, *, n_neighbors: int = 1, device: str | None = None) -> None:
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.device = device

    def fit(self, X: Array, y: Any) -> "MahalanobisKNN":  # noqa: N803
        """Fit the metric if it is a learner, and store the training points."""
        check_positive_int(n_neighbors=self.n_neighbors)
        if self.n_neighbors % 2 == 0:
            raise ValueError(f"n_neighbors is {self.n_neighbors!r} but must be an odd number, such as 1 or 11")
        choose_device(self.device)
        self.points_, self.labels_, self.classes_ = check_labeled(self, X, y)
        if len(self.points_) < self.n_neighbors + 1:
            needed = f"n_neighbors = {self.n_neighbors} needs at least {self.n_neighbors + 1} points"
            raise ValueError(f"X has {len(self.points_)} points but {needed}")
        self.components_ = self._components(y)
        return self

    def _components(self, y: Any) -> Array:
        width = self.points_.shape[1]
        if self.metric is None:
            return np.eye(width)
        if hasattr(self.metric, "fit") and not isinstance(self.metric, type):
            return _learned_components(self.metric, self.points_, y)
        return _matrix_components(self.metric, width)

    def predict(self, X: Array) -> Array:  # noqa: N803
        """Return the predicted class of each point."""
        queries, device = self._queries(X), choose_device(self.device)
        near, away = (torch.from_numpy(x @ self.components_.T).to(device) for x in (self.points_, queries))
        index = neighbors(away, near, self.n_neighbors)[1].cpu()
        predicted: Array = self.classes_[vote(torch.from_numpy(self.labels_)[index]).numpy()]
        return predicted

    def certify(self, X: Array) -> Certificate:  # noqa: N803
        """Return a certificate of each prediction in the L2 norm, as tensors with one entry per point.

        ``label`` is the position of the prediction in ``classes_``. No perturbation shorter than ``radius`` changes it,
        and a perturbation of length ``upper`` does (infinite if none was found). See
        :class:`holdfast.certify.neighbors.Neighbors`.
        """
        queries, device = self._queries(X), choose_device(self.device)
        certifier = Neighbors(
            points=torch.from_numpy(self.points_).to(device),
            labels=torch.from_numpy(self.labels_).to(device),
            matrix=torch.from_numpy(self.components_.T @ self.components_),
            k=self.n_neighbors,
        )
        return certifier(torch.from_numpy(queries), rng=Rng(0))

    def _queries(self, points: Array) -> Array:
        check_is_fitted(self)
        return finite(validate_data(self, points, dtype=np.float64, ensure_all_finite=False, reset=False))

    def get_metric(self) -> Metric:
        """Return the distance as a function of two points."""
        check_is_fitted(self)
        return Metric(self.components_)


def _matrix_components(metric: Any, width: int) -> Array:
    """Return L with L.T @ L = metric; raise ValueError if that is not a positive semi-definite matrix."""
    try:
        matrix = torch.from_numpy(np.array(metric, dtype=np.complex128 if np.iscomplexobj(metric) else np.float64))
    except (TypeError, ValueError, RuntimeError) as error:
        given = " ".join(reprlib.repr(metric).split())
        raise ValueError(f"metric is {given} but must be {_ALLOWED}") from error
    root, scale = factor(matrix)
    size = float(matrix.abs().max())
    if size and not 1e-120 < size < 1e120:
        raise ValueError(f"the matrix reaches {size:.3g}; scale it to a size near 1, which changes no neighbor")
    if root.shape[1] != width:
        raise ValueError(f"the matrix has shape {tuple(matrix.shape)} but X has {width} features")
    components: Array = (root * scale**0.5).numpy()
    return components


def _learned_components(metric: Any, points: Array, y: Any) -> Array:
    fitted = clone(metric).fit(points, y)
    if not hasattr(fitted, "components_"):
        raise ValueError(f"metric is {type(metric).__name__}, which learns no components_, but must be {_ALLOWED}")
    found: Array = fitted.components_
    if found.shape[1] != points.shape[1]:
        name = type(getattr(metric, "estimator", metric)).__name__  # the learner inside a FrozenEstimator
        raise ValueError(f"{name} was fitted with {found.shape[1]} features but X has {points.shape[1]}")
    return found
