"""Triplets (x, x+, x-): their radius in closed form, and where their members are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ENTRIES = 1 << 24  # of a block of distances


def triplet_radius(x: Tensor, plus: Tensor, minus: Tensor, metric: Tensor) -> Tensor:
    """How far x is from the points that are as near to x- as to x+, (b,); negative when x is nearer to x-.

    Equation 7 of Wang et al. (NeurIPS 2020), [d(x, x-) - d(x, x+)] / (2 ||M (x+ - x-)||), written as the distance to
    a hyperplane with the normal M (x+ - x-) through the middle of both: nothing cancels, and equal x+ and x- give 0.
    The minimal perturbation is the positive part. ``metric`` is M, (d, d).
    """
    normal = F.normalize((plus - minus) @ metric, dim=1, eps=torch.finfo(x.dtype).tiny)
    return (normal * (x - (plus + minus) / 2)).sum(1)


@dataclass(frozen=True)
class Classes:
    """Labels in blocks: ``order`` sorts the points by class, and class c then spans ends[c] to ends[c + 1]."""

    order: Tensor
    ends: list[int]

    @classmethod
    def of(cls, labels: Tensor) -> Classes:
        """The blocks of labels that are numbered from 0."""
        counts = labels.bincount()
        return cls(labels.argsort(stable=True), [0, *counts.cumsum(0).tolist()])

    def blocks(self) -> list[tuple[slice, slice]]:
        """Rows of one class, few enough for a block of distances to all points, and the span of their class."""
        size = max(1, _ENTRIES // self.ends[-1])
        spans = [slice(a, b) for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return [(slice(a, min(a + size, s.stop)), s) for s in spans for a in range(s.start, s.stop, size)]


class Neighborhoods:
    """Of every point the nearest points of its own class and the nearest of the others, in no order.

    ``z`` is sorted by class. The searches are in the numbers of ``z``: a training step needs no exact order.
    """

    def __init__(self, z: Tensor, classes: Classes, k: int) -> None:
        own, other, self.sizes = [], [], z.new_empty(len(z), 2)
        squares = z.square().sum(1)
        for rows, span in classes.blocks():
            table = torch.addmm(squares, z[rows], z.T, alpha=-2)  # up to a number per row, which changes no order
            inside = table[:, span]
            inside.diagonal(rows.start - span.start).fill_(torch.inf)
            kept = min(k, inside.shape[1] - 1), min(k, len(z) - inside.shape[1])
            self.sizes[rows] = z.new_tensor(kept)
            own.append(_padded(inside.topk(kept[0], dim=1, largest=False, sorted=False).indices + span.start, k))
            inside.fill_(torch.inf)
            other.append(_padded(table.topk(kept[1], dim=1, largest=False, sorted=False).indices, k))
        self.own, self.other = torch.cat(own), torch.cat(other)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Each point with one of its own class and one of the others; who is alone in its class has no triplet."""
        # drawn where the generator lives, so that every device gets the same numbers
        u = torch.rand(len(self.own), 2, generator=generator).to(self.sizes)
        which = torch.minimum((u * self.sizes).floor(), self.sizes - 1).long()
        x = self.sizes[:, 0].nonzero()[:, 0]
        return x, self.own[x, which[x, 0]], self.other[x, which[x, 1]]


def _padded(index: Tensor, width: int) -> Tensor:
    return F.pad(index, (0, width - index.shape[1]))
