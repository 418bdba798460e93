"""Information-theoretic metric learning by cyclic Bregman projections (Davis et al. 2007)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from holdfast.learners._metric import (
    Array,
    Progress,
    Supervised,
    chosen_device,
    factor,
    number,
    paired,
    positive,
    tolerance,
    whole,
)

_BLOCK = 32  # constraints projected between two updates of the matrix; 24 to 48 are as fast for 16 and 256 features
_SAMPLE = 100_000  # pairs whose distances give the bounds


class ITML(Supervised):
    """The metric nearest to the Euclidean one in LogDet divergence that keeps pairs near or apart (ICML 2007).

    ``n_constraints`` random pairs of one class (20 times the squared number of classes when None) are to lie nearer
    than ``bounds[0]`` in squared distance and as many pairs of two classes farther than ``bounds[1]``; without bounds
    these are the 5th and 95th percentile of the squared distances of random pairs. ``gamma`` weighs the slack.
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

    def fit(self, X: Array, y: Any) -> ITML:  # noqa: N803
        """Learn the metric from points and their labels."""
        positive(gamma=self.gamma)
        whole(max_iter=self.max_iter)
        tolerance(self.tol)
        if self.n_constraints is not None:
            whole(n_constraints=self.n_constraints)
        device = chosen_device(self.device)
        points, labels, classes = paired(self, X, y)
        random = check_random_state(self.random_state)
        many = self.n_constraints if self.n_constraints is not None else 20 * len(classes) ** 2
        near, apart = same_class(labels, many, random), other_class(labels, many, random)
        self.bounds_ = self._bounds(points, random)
        differences = np.concatenate([points[a] - points[b] for a, b in (near, apart)])
        sign = np.repeat([1.0, -1.0], many)
        moved = (differences**2).sum(1) > 0  # equal points stay equal under every metric
        projections = Projections(
            torch.from_numpy(differences[moved]).to(device), sign[moved], self.bounds_, self.gamma
        )
        self._converge(projections)
        self.components_ = factor(projections.matrix.cpu().numpy())
        return self

    def _bounds(self, points: Array, random: np.random.RandomState) -> tuple[float, float]:
        if self.bounds is not None:
            low, high = _ascending(self.bounds)
        else:
            a, b = random.randint(len(points), size=(2, _SAMPLE))
            steps = np.array_split(np.arange(_SAMPLE)[a != b], 50)
            low, high = np.percentile(
                np.concatenate([((points[a[i]] - points[b[i]]) ** 2).sum(1) for i in steps]), (5, 95)
            )
        return max(float(low), 1e-9), max(float(high), 1e-9)

    def _converge(self, projections: Projections) -> None:
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
        warnings.warn(
            f"ITML's multipliers still change by {change:.2g} after {self.max_iter} iterations; raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )


class Projections:
    """The matrix and the multipliers while constraints on v'Av are met one after another.

    A constraint's projection is a rank-one update of the matrix (Algorithm 1 of the paper). Only products with the
    other differences of its block are needed before the block ends, so the matrix is updated once for each block with
    what is exactly the same result: matrix products in place of thousands of outer products.
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
            weights, scales = self._inside((images @ v.T).cpu().numpy(), start)
            moved = images.T @ torch.from_numpy(weights).to(v)
            self.matrix += (moved * torch.from_numpy(scales).to(v)) @ moved.T

    def _inside(self, products: Array, start: int) -> tuple[Array, Array]:
        """The rank-one updates of a block: combinations of the images of its differences, and their factors."""
        n = len(products)
        both = np.concatenate([products, np.eye(n)])  # products under the current matrix; images as combinations
        weights, scales = np.zeros((n, n)), np.zeros(n)
        for i in range(n):
            scale = self._project(start + i, both.item(i, i))
            if scale:
                weights[:, i], scales[i] = both[n:, i], scale
                needed = both[i + 1 : n + i + 1]  # products with later ones; images so far combine no later ones
                needed[:, i + 1 :] += needed[:, i, None] * (scale * both[i, i + 1 :])
        return weights, scales

    def _project(self, i: int, distance: float) -> float:
        """Meet constraint i, whose difference has this squared length: the factor of the rank-one update."""
        # plain floats: numpy's cost several times as much, and this runs for every constraint in every iteration
        sign, slack, multiplier = self.sign.item(i), self.slack.item(i), self.multipliers.item(i)
        alpha = min(multiplier, sign * self.gamma / (self.gamma + 1) * (1 / distance - 1 / slack))
        if alpha == 0:
            return 0.0
        self.multipliers[i] = multiplier - alpha
        self.slack[i] = 1 / (1 / slack + sign * alpha / self.gamma)
        return float(sign * alpha / (1 - sign * alpha * distance))


def _ascending(bounds: Any) -> tuple[float, float]:
    known = isinstance(bounds, tuple | list | np.ndarray) and len(bounds) == 2 and all(map(number, bounds))
    if not known or not 0 <= bounds[0] <= bounds[1]:
        raise ValueError(f"bounds are {bounds!r} but must be two ascending squared distances")
    return bounds[0], bounds[1]


def same_class(labels: Array, many: int, random: np.random.RandomState) -> tuple[Array, Array]:
    """Random pairs of different points of one class: a point whose class has another, then one of the others."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    starts = np.cumsum(counts) - counts
    first = random.choice(np.flatnonzero(counts[labels] > 1), many)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    label = labels[first]
    step = 1 + (random.random_sample(many) * (counts[label] - 1)).astype(int)
    return first, order[starts[label] + (place[first] - starts[label] + step) % counts[label]]


def other_class(labels: Array, many: int, random: np.random.RandomState) -> tuple[Array, Array]:
    """Random pairs of points of different classes: any point, then one of the points outside its class."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    starts = np.cumsum(counts) - counts
    first = random.randint(len(labels), size=many)
    label = labels[first]
    step = (random.random_sample(many) * (len(labels) - counts[label])).astype(int)
    return first, order[(starts[label] + counts[label] + step) % len(labels)]
