"""Information-theoretic metric learning by cyclic Bregman projections (Davis et al. 2007)."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from holdfast.learners import _metric
from holdfast.learners._metric import Array, Progress, Supervised
from holdfast.mahalanobis import ROUNDING

_BLOCK = 32  # constraints between two updates of the matrix; from 24 to 48 equally fast with 16 and 256 features
_SAMPLE = 100_000  # pairs of points whose distances determine the default bounds


class ITML(Supervised):
    """The metric nearest to the Euclidean one in LogDet divergence that satisfies pairwise constraints (ICML 2007).

    ``n_constraints`` random pairs of the same class (by default 20 times the squared number of classes) should have a
    squared distance below ``bounds[0]``, and as many pairs of different classes one above ``bounds[1]``. The default
    bounds are the 5th and 95th percentile of the squared distances of random pairs. ``gamma`` weighs violations.
    Fitting stops when the multipliers change by less than ``tol`` relative to their length.
    """

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        n_constraints: int | None = None,
        bounds: tuple[float, float] | None = None,
        max_iter: int = 1000,
        tol: float = 1e-3,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.gamma = gamma
        self.n_constraints = n_constraints
        self.bounds = bounds
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def fit(self, X: Array, y: Any) -> "ITML":  # noqa: N803
        """Learn the metric from labeled points."""
        _metric.check_positive(gamma=self.gamma)
        _metric.check_positive_int(max_iter=self.max_iter)
        _metric.check_tolerance(self.tol)
        if self.n_constraints is not None:
            _metric.check_positive_int(n_constraints=self.n_constraints)
        device = _metric.choose_device(self.device)
        points, labels, classes = _metric.check_pairs(self, X, y)
        random = check_random_state(self.random_state)
        count = self.n_constraints if self.n_constraints is not None else 20 * len(classes) ** 2
        near, apart = same_class(labels, count, random), other_class(labels, count, random)
        self.bounds_ = self._bounds(points, random)
        differences = np.concatenate([points[a] - points[b] for a, b in (near, apart)])
        sign = np.repeat([1.0, -1.0], count)
        distinct = (differences**2).sum(1) > 0  # the distance of equal points is zero under every metric
        projections = Projections(
            torch.from_numpy(differences[distinct]).to(device), sign[distinct], self.bounds_, self.gamma
        )
        self._converge(projections)
        self.components_ = _square_root(projections.matrix.cpu().numpy())
        return self

    def _bounds(self, points: Array, random: np.random.RandomState) -> tuple[float, float]:
        if self.bounds is not None:
            low, high = _check_bounds(self.bounds)
        else:
            a, b = random.randint(len(points), size=(2, _SAMPLE))
            steps = np.array_split(np.arange(_SAMPLE)[a != b], 50)
            low, high = np.percentile(
                np.concatenate([((points[a[i]] - points[b[i]]) ** 2).sum(1) for i in steps]), (5, 95)
            )
        return max(float(low), 1e-9), max(float(high), 1e-9)

    def _converge(self, projections: "Projections") -> None:
        for iteration in range(1, self.max_iter + 1):
            before = projections.multipliers.copy()
            projections.cycle()
            length = np.linalg.norm(before) + np.linalg.norm(projections.multipliers)
            change = float(np.abs(projections.multipliers - before).sum() / length) if length else 0.0
            if self.progress is not None:
                self.progress(iteration, change)
            self.n_iter_ = iteration
            if change < self.tol:
                return
        message = f"ITML's multipliers still change by {change:.2g} after {self.max_iter} iterations"
        _metric.warn_not_converged(message, stacklevel=3)


class Projections:
    """Cyclic Bregman projections: the matrix A and the multipliers of the constraints on vᵀAv.

    Projecting onto a constraint is a rank-one update of the matrix (Algorithm 1 of the paper). Within a block of
    constraints only the products vᵀAv' of its differences are updated; the matrix itself is updated once per block.
    The result is the same, with matrix products instead of thousands of outer products.
    """

    def __init__(self, differences: Tensor, sign: Array, bounds: tuple[float, float], gamma: float) -> None:
        self.differences, self.sign, self.gamma = differences, sign, gamma
        self.matrix = torch.eye(differences.shape[1], dtype=differences.dtype, device=differences.device)
        self.multipliers = np.zeros(len(sign))
        self.slack = np.where(sign > 0, *bounds)

    def cycle(self) -> None:
        """Project onto every constraint once, in order."""
        for start in range(0, len(self.sign), _BLOCK):
            v = self.differences[start : start + _BLOCK]
            images = v @ self.matrix
            weights, scales = self._project_block((images @ v.T).cpu().numpy(), start)
            combined = images.T @ torch.from_numpy(weights).to(v)
            self.matrix += (combined * torch.from_numpy(scales).to(v)) @ combined.T

    def _project_block(self, products: Array, start: int) -> tuple[Array, Array]:
        """Return the rank-one updates of a block: their vectors as combinations of the images Av, and their scales."""
        n = len(products)
        both = np.concatenate([products, np.eye(n)])  # vᵀAv' and the coefficients of the images
        weights, scales = np.zeros((n, n)), np.zeros(n)
        for i in range(n):
            scale = self._project(start + i, both.item(i, i))
            if scale:
                weights[:, i], scales[i] = both[n:, i], scale
                needed = both[i + 1 : n + i + 1]  # the other entries are zero or not used again
                needed[:, i + 1 :] += needed[:, i, None] * (scale * both[i, i + 1 :])
        return weights, scales

    def _project(self, i: int, distance: float) -> float:
        """Project onto constraint i, given its squared distance; return the scale of the rank-one update."""
        # Python floats: numpy scalars are several times slower, and this runs for every constraint in every iteration
        sign, slack, multiplier = self.sign.item(i), self.slack.item(i), self.multipliers.item(i)
        alpha = min(multiplier, sign * self.gamma / (self.gamma + 1) * (1 / distance - 1 / slack))
        if alpha == 0:
            return 0.0
        self.multipliers[i] = multiplier - alpha
        self.slack[i] = 1 / (1 / slack + sign * alpha / self.gamma)
        return float(sign * alpha / (1 - sign * alpha * distance))


def _check_bounds(bounds: Any) -> tuple[float, float]:
    two_numbers = (
        isinstance(bounds, tuple | list | np.ndarray) and len(bounds) == 2 and all(map(_metric.is_number, bounds))
    )
    if not two_numbers or not 0 <= bounds[0] <= bounds[1]:
        raise ValueError(f"bounds are {bounds!r} but must be two ascending squared distances")
    return bounds[0], bounds[1]


def _square_root(matrix: Array) -> Array:
    """Return L with L.T @ L = matrix, which the projections keep positive definite up to rounding errors."""
    if not np.isfinite(matrix).all():
        raise ValueError("ITML's matrix is no longer finite; scale the points, e.g. to [0, 1], or lower gamma")
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] < -ROUNDING * np.abs(matrix).max():
        raise ValueError(
            f"ITML's matrix has the eigenvalue {values[0]:.3g} but must be positive semi-definite; scale the points, "
            "e.g. to [0, 1], or lower gamma"
        )
    root: Array = np.sqrt(values.clip(0))[:, None] * vectors.T
    return root


def same_class(labels: Array, count: int, random: np.random.RandomState) -> tuple[Array, Array]:
    """Draw random pairs of different points of the same class; return the indices of both."""
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    first = random.choice(np.flatnonzero(sizes[labels] > 1), count)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    label = labels[first]
    step = 1 + (random.random_sample(count) * (sizes[label] - 1)).astype(int)
    return first, order[starts[label] + (position[first] - starts[label] + step) % sizes[label]]


def other_class(labels: Array, count: int, random: np.random.RandomState) -> tuple[Array, Array]:
    """Draw random pairs of points of different classes; return the indices of both."""
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    first = random.randint(len(labels), size=count)
    label = labels[first]
    step = (random.random_sample(count) * (len(labels) - sizes[label])).astype(int)
    return first, order[(starts[label] + sizes[label] + step) % len(labels)]
