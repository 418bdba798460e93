"""Training points under a Mahalanobis metric, in float64: distances, predictions and what certificates need of both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from holdfast.neighbors import neighbors, vote

_ENTRIES = 1 << 23  # float64 numbers in one table of distances: 64 MiB
_ROUNDING = 2e-14  # relative error of a difference of squared distances, rounded up


@dataclass(frozen=True, eq=False)
class Space:
    """Labeled training points under the metric M = GᵀG.

    ``mapped`` holds u = G x, whose Euclidean distances are those of the metric. ``normals`` holds w = M x: for a
    perturbation d, dist(x + d, x_i) = dist(x, x_i) - 2 d·w_i + a term that is the same for all points, so comparing
    two neighbors is linear in d. Both are centered on the mean of the points, which improves the precision and does
    not change any comparison.
    """

    points: Tensor  # (n, d)
    labels: Tensor  # (n,) integers from 0
    root: Tensor | None  # G (r, d) with M = GᵀG; None for the Euclidean metric

    @cached_property
    def center(self) -> Tensor:
        return self.points.mean(0)

    @cached_property
    def mapped(self) -> Tensor:
        return self.map(self.points)

    @cached_property
    def normals(self) -> Tensor:
        return self.mapped if self.root is None else self.mapped @ self.root

    @cached_property
    def _squares(self) -> Tensor:
        return self.mapped.square().sum(1)

    def map(self, x: Tensor) -> Tensor:
        """Return G (x - center)."""
        return x - self.center if self.root is None else (x - self.center) @ self.root.T

    def distances(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """Return the (b, len(which)) squared distances of x to the training points ``which``, by default to all."""
        if which is None:
            return squared_distances(self.map(x), self.mapped, self._squares)
        return squared_distances(self.map(x), self.mapped[which], self._squares[which])

    def rounding(self, x: Tensor) -> Tensor:
        """Return an upper bound, (b, 1), on the rounding error of a difference of two squared distances of x."""
        return _ROUNDING * (self.map(x).square().sum(1, keepdim=True) + self._squares.max())

    @cached_property
    def scale(self) -> float:
        """The largest Euclidean distance of a training point from the center."""
        return float((self.points - self.center).square().sum(1).max().sqrt())

    @cached_property
    def longest_normal(self) -> float:
        """The length of the longest w = M x."""
        return float(self.normals.square().sum(1).max().sqrt())

    def normal_lengths(self, some: Tensor, others: Tensor) -> Tensor:
        """Return the lengths ‖w_i - w_j‖, (len(some), len(others)), rounded up because lower bounds divide by them."""
        lengths = squared_distances(self.normals[some], self.normals[others])
        return lengths.add_(4 * _ROUNDING * self.longest_normal**2).sqrt_()

    def same_class(self, label: int) -> Tensor:
        """Return the indices of the training points with this label."""
        return (self.labels == label).nonzero()[:, 0]

    def other_classes(self, label: int) -> Tensor:
        """Return the indices of the training points with another label."""
        return (self.labels != label).nonzero()[:, 0]

    def block_size(self) -> int:
        """Return the number of inputs whose distances to all training points are computed at once."""
        return max(1, _ENTRIES // max(len(self.points), 1))

    def predict(self, x: Tensor, k: int) -> Tensor:
        """Return the (b,) labels with most votes among the k nearest training points."""
        return vote(self.labels[neighbors(self.map(x), self.mapped, k)[1]])


def present(labels: Tensor) -> list[int]:
    """Return the labels that occur, in ascending order."""
    return labels.bincount().nonzero()[:, 0].tolist()


def squared_distances(z: Tensor, u: Tensor, u_squares: Tensor | None = None) -> Tensor:
    """Return the (b, n) squared Euclidean distances between rows, from inner products; expects centered rows."""
    lengths = u.square().sum(1) if u_squares is None else u_squares
    return torch.addmm(lengths[None], z, u.T, alpha=-2).add_(z.square().sum(1, keepdim=True)).clamp_min_(0)
