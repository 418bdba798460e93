"""Training points under a Mahalanobis metric, in float64: distances, votes and the two maps that certificates need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from holdfast.neighbors import neighbors

_CELLS = 1 << 23  # float64 numbers in one table of distances: 64 MiB
_ROUNDING = 2e-14


@dataclass(frozen=True, eq=False)
class Space:
    """``mapped`` u = G x has the metric's distances as Euclidean ones; ``pulled`` w = M x holds how they change with x.

    With d(x + d, x_i) = d(x, x_i) - 2 d·w_i + (what all points share), comparing neighbours is linear in d. Both are
    centred on the mean of the points, which keeps digits and changes no comparison.
    """

    points: Tensor  # (n, d)
    labels: Tensor  # (n,) from 0
    root: Tensor | None  # G (r, d) with M = GᵀG; None: Euclidean

    @cached_property
    def center(self) -> Tensor:
        return self.points.mean(0)

    @cached_property
    def mapped(self) -> Tensor:
        return self.map(self.points)

    @cached_property
    def pulled(self) -> Tensor:
        return self.mapped if self.root is None else self.mapped @ self.root

    @cached_property
    def _squares(self) -> Tensor:
        return self.mapped.square().sum(1)

    def map(self, x: Tensor) -> Tensor:
        """G (x - center)."""
        return x - self.center if self.root is None else (x - self.center) @ self.root.T

    def distances(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """(b, len(which)) squared distances of x to these training points, or to all."""
        if which is None:
            return squared(self.map(x), self.mapped, self._squares)
        return squared(self.map(x), self.mapped[which], self._squares[which])

    def rounding(self, x: Tensor) -> Tensor:
        """(b, 1): more than the error of a difference between two squared distances of x."""
        return _ROUNDING * (self.map(x).square().sum(1, keepdim=True) + self._squares.max())

    @cached_property
    def scale(self) -> float:
        """The length of the longest training point, seen from the center."""
        return float((self.points - self.center).square().sum(1).max().sqrt())

    @cached_property
    def pull(self) -> float:
        """The length of the longest w = M x."""
        return float(self.pulled.square().sum(1).max().sqrt())

    def apart(self, some: Tensor, others: Tensor) -> Tensor:
        """(len(some), len(others)) lengths of the differences of w, rounded up: they divide what a bound proves."""
        lengths = squared(self.pulled[some], self.pulled[others])
        return lengths.add_(4 * _ROUNDING * self.pull**2).sqrt_()

    def own(self, label: int) -> Tensor:
        """The positions of the training points with this label."""
        return (self.labels == label).nonzero()[:, 0]

    def others(self, label: int) -> Tensor:
        """The positions of the training points with another label."""
        return (self.labels != label).nonzero()[:, 0]

    def rows(self) -> int:
        """How many inputs can meet all training points in one table."""
        return max(1, _CELLS // max(len(self.points), 1))

    def predict(self, x: Tensor, k: int) -> Tensor:
        """(b,) the label with most votes among the k nearest."""
        return elected(self.labels[neighbors(self.map(x), self.mapped, k)[1]])


def elected(votes: Tensor) -> Tensor:
    """(b,) the most frequent label of each row of (b, k) votes, the smallest of those equally frequent."""
    counts = votes.new_zeros(len(votes), int(votes.max()) + 1 if votes.numel() else 1)
    return counts.scatter_add_(1, votes, torch.ones_like(votes)).argmax(1)


def present(labels: Tensor) -> list[int]:
    """The labels that occur, ascending."""
    return labels.bincount().nonzero()[:, 0].tolist()


def squared(z: Tensor, u: Tensor, u_squares: Tensor | None = None) -> Tensor:
    """(b, n) squared Euclidean distances between rows, as a product; centred rows lose few digits to that."""
    lengths = u.square().sum(1) if u_squares is None else u_squares
    return torch.addmm(lengths[None], z, u.T, alpha=-2).add_(z.square().sum(1, keepdim=True)).clamp_min_(0)
