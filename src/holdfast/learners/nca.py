"""Neighborhood components analysis, as scikit-learn has it (Goldberger et al. 2005)."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from holdfast.learners._metric import Array, Supervised, labelled, tolerance, whole


class NCA(Supervised):
    """The metric under which a point most likely draws a neighbor of its own class (NIPS 2004).

    This is scikit-learn's NeighborhoodComponentsAnalysis with a full matrix, started from the identity, so nothing is
    random. It holds a table of all pairs of points, so it is for some ten thousand points at most.
    """

    def __init__(self, *, max_iter: int = 50, tol: float = 1e-5) -> None:
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Array, y: Any) -> NCA:  # noqa: N803
        """Learn the metric from points and their labels."""
        whole(max_iter=self.max_iter)
        tolerance(self.tol)
        points, labels, _ = labelled(self, X, y)
        learner = NeighborhoodComponentsAnalysis(init="identity", max_iter=self.max_iter, tol=self.tol)
        found = learner.fit(points, labels)
        self.components_, self.n_iter_ = found.components_, max(1, found.n_iter_ - 1)  # it counts the start too
        if self.n_iter_ >= self.max_iter:
            warnings.warn(
                f"NCA has not settled after {self.max_iter} iterations; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self
