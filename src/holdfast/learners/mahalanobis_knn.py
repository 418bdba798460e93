"""The K nearest neighbors under a learned metric or a given matrix: the classifier that certificates are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from holdfast.learners._metric import KNOWN, Array, Metric, chosen_device, factor, finite, labelled, whole
from holdfast.neighbors import neighbors


class MahalanobisKNN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The vote of the ``n_neighbors`` nearest training points; ``metric`` is a learner, a matrix M, or Euclidean.

    A learner is cloned and fitted with the points; wrap one that is fitted already in scikit-learn's
    ``FrozenEstimator``. M must be positive semi-definite. ``n_neighbors`` is odd, as certificates need it. Ties: of
    equally near points the one that comes first in the training set is nearer, and of classes with equally many votes
    the first in ``classes_`` wins.
    """

    def __init__(self, metric: Any = None, *, n_neighbors: int = 1, device: str | None = None) -> None:
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.device = device

    def fit(self, X: Array, y: Any) -> MahalanobisKNN:  # noqa: N803
        """Learn the metric if there is one to learn, and keep the points."""
        whole(n_neighbors=self.n_neighbors)
        if self.n_neighbors % 2 == 0:
            raise ValueError(f"n_neighbors is {self.n_neighbors!r} but must be an odd number, such as 1 or 11")
        chosen_device(self.device)
        self.points_, self.labels_, self.classes_ = labelled(self, X, y)
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
            return _learned(self.metric, self.points_, y)
        root = factor(self.metric)
        if len(root) != width:
            raise ValueError(f"the matrix has shape {root.shape} but X has {width} features")
        return root

    def predict(self, X: Array) -> Array:  # noqa: N803
        """The class of each point."""
        check_is_fitted(self)
        queries = finite(validate_data(self, X, dtype=np.float64, ensure_all_finite=False, reset=False))
        device = chosen_device(self.device)
        near, away = (torch.from_numpy(x @ self.components_.T).to(device) for x in (self.points_, queries))
        index = neighbors(away, near, self.n_neighbors)[1].cpu().numpy()
        votes = np.zeros((len(queries), len(self.classes_)), dtype=np.int64)
        np.add.at(votes, (np.arange(len(queries))[:, None], self.labels_[index]), 1)
        predicted: Array = self.classes_[votes.argmax(1)]
        return predicted

    def get_metric(self) -> Metric:
        """The distance of two points as a function."""
        check_is_fitted(self)
        return Metric(self.components_)


def _learned(metric: Any, points: Array, y: Any) -> Array:
    fitted = clone(metric).fit(points, y)
    if not hasattr(fitted, "components_"):
        raise ValueError(f"metric is {type(metric).__name__}, which learns no components_, but must be {KNOWN}")
    found: Array = fitted.components_
    if found.shape[1] != points.shape[1]:
        name = type(getattr(metric, "estimator", metric)).__name__  # the one that is frozen
        raise ValueError(f"{name} was fitted with {found.shape[1]} features but X has {points.shape[1]}")
    return found
