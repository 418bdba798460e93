"""Neighborhood components analysis, a wrapper of scikit-learn's (Goldberger et al. 2005)."""

from typing import Any

from sklearn.neighbors import NeighborhoodComponentsAnalysis

from holdfast.learners import _metric
from holdfast.learners._metric import Array, Supervised


class NCA(Supervised):
    """The metric that maximizes the leave-one-out accuracy of stochastic nearest neighbors (NIPS 2004).

    This is scikit-learn's NeighborhoodComponentsAnalysis with a full matrix, initialized with the identity, and
    therefore deterministic. Its memory is quadratic in the number of points: use it for at most some ten thousand.
    """

    def __init__(self, *, max_iter: int = 50, tol: float = 1e-5) -> None:
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Array, y: Any) -> "NCA":  # noqa: N803
        """Learn the metric from labeled points."""
        _metric.check_positive_int(max_iter=self.max_iter)
        _metric.check_tolerance(self.tol)
        points, labels, _ = _metric.check_labeled(self, X, y)
        learner = NeighborhoodComponentsAnalysis(init="identity", max_iter=self.max_iter, tol=self.tol)
        found = learner.fit(points, labels)
        self.components_ = found.components_
        self.n_iter_ = max(1, found.n_iter_ - 1)  # scikit-learn counts the initialization too
        if self.n_iter_ >= self.max_iter:
            _metric.warn_not_converged(f"NCA has not converged after {self.max_iter} iterations", stacklevel=2)
        return self
