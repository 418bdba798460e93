"""The Euclidean metric, a baseline for learned metrics."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from holdfast.learners._metric import Array, Learner, finite


class Euclidean(Learner):
    """The Euclidean metric with the interface of a learner: ``components_`` is the identity."""

    def fit(self, X: Array, y: Any = None) -> "Euclidean":  # noqa: N803
        """Validate the points and store the number of features."""
        points = finite(validate_data(self, X, dtype=np.float64, ensure_all_finite=False))
        self.components_ = np.eye(points.shape[1])
        return self
