"""Triplets (x, x+, x-): their robust radius in closed form, and the sampling of triplets from neighborhoods."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ENTRIES = 1 << 24  # distances computed at once


def triplet_radius(x: Tensor, plus: Tensor, minus: Tensor, metric: Tensor) -> Tensor:
    """Return the signed distances (b,) of x from the points equally near to x+ and x-; negative if x is nearer to x-.

    This is equation 7 of Wang et al. (NeurIPS 2020), [d(x, x-) - d(x, x+)] / (2 ||M (x+ - x-)||), computed as the
    distance to the hyperplane with normal M (x+ - x-) through the midpoint of x+ and x-, which avoids cancellation and
    gives 0 for x+ = x-. The minimal perturbation is the positive part. ``metric`` is M, (d, d).
    """
    normal = F.normalize((plus - minus) @ metric, dim=1, eps=torch.finfo(x.dtype).tiny)
    return (normal * (x - (plus + minus) / 2)).sum(1)


@dataclass(frozen=True)
class Classes:
    """Points grouped by class: ``order`` sorts them, and class c then occupies ends[c] to ends[c + 1]."""

    order: Tensor
    ends: list[int]

    @classmethod
    def of(cls, labels: Tensor) -> "Classes":
        """Group labels that are numbered from 0."""
        counts = labels.bincount()
        return cls(labels.argsort(stable=True), [0, *counts.cumsum(0).tolist()])

    def blocks(self) -> list[tuple[slice, slice]]:
        """Return pairs (rows, span): rows of one class whose distances to all points fit in memory, and its span."""
        size = max(1, _ENTRIES // self.ends[-1])
        spans = [slice(a, b) for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return [(slice(a, min(a + size, s.stop)), s) for s in spans for a in range(s.start, s.stop, size)]


class Neighborhoods:
    """For every point the k nearest points of its class (``same``) and of the other classes (``other``), unordered.

    ``z`` is sorted by class. Distances have the precision of ``z``: a training step needs no exact order.
    """

    def __init__(self, z: Tensor, classes: Classes, k: int) -> None:
        same, other, self.sizes = [], [], z.new_empty(len(z), 2)
        squares = z.square().sum(1)
        for rows, span in classes.blocks():
            table = torch.addmm(squares, z[rows], z.T, alpha=-2)  # squared distances up to a constant per row
            inside = table[:, span]
            inside.diagonal(rows.start - span.start).fill_(torch.inf)
            kept = min(k, inside.shape[1] - 1), min(k, len(z) - inside.shape[1])
            self.sizes[rows] = z.new_tensor(kept)
            same.append(_pad(inside.topk(kept[0], dim=1, largest=False, sorted=False).indices + span.start, k))
            inside.fill_(torch.inf)
            other.append(_pad(table.topk(kept[1], dim=1, largest=False, sorted=False).indices, k))
        self.same, self.other = torch.cat(same), torch.cat(other)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a triplet (x, x+, x-) of indices for each point that is not the only one of its class."""
        # drawn on the CPU, the device of the generator, so that every device gets the same numbers
        u = torch.rand(len(self.same), 2, generator=generator).to(self.sizes)
        which = torch.minimum((u * self.sizes).floor(), self.sizes - 1).long()
        x = self.sizes[:, 0].nonzero()[:, 0]
        return x, self.same[x, which[x, 0]], self.other[x, which[x, 1]]


def _pad(index: Tensor, width: int) -> Tensor:
    return F.pad(index, (0, width - index.shape[1]))
