"""The shortest way into a cell: where chosen training points are nearer than all of the own label but a few."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._shortest import Shortest, shortest
from holdfast.certify._space import Space

Box = tuple[float, float] | None
_TOLERANCE = 1e-10  # of the data's scale: how far outside a half-space the shortest way may end
_STEPS = 1000
_SAME = 1e-9  # of the scale of w = M x: closer points are one point, and no d can part them
_CELLS = 1 << 24  # float64 numbers held by the problems solved at once: 128 MiB
_SLOTS = 32


@dataclass(frozen=True, eq=False)
class Cells:
    """Many problems around inputs of one label: ``inside`` (b, q) shall be nearer than all own points not ``spared``.

    For one neighbour this is the QP of Algorithm 2 of ARML (Wang et al. 2020): q = 1 and nobody is spared.
    """

    space: Space
    own: Tensor  # (p,) positions of the training points with the inputs' label
    x: Tensor  # (b, d)
    own_distance: Tensor  # (b, p)
    inside: Tensor  # (b, q) positions of training points
    inside_distance: Tensor  # (b, q)
    spared: Tensor | None = None  # (b, p)
    box: Box = None
    margin: float = 0.0  # how far inside every half-space to end, in units of d; a certificate needs 0

    def solve(self, enough: Tensor) -> Shortest:
        """The shortest way into each cell, as far as it is of interest: up to a proved length of ``enough``."""
        allowed, pulled = self.space.rounding(self.x)[:, 0], self.space.pulled
        own, same = pulled[self.own], _SAME * self.space.pull

        def violated(rows: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # nearness up to what all points share: 2 d·w - distance
            nearness = torch.addmm(self.own_distance[rows], d, own.T, alpha=2, beta=-1)
            if self.spared is not None:
                nearness.masked_fill_(self.spared[rows], -torch.inf)
            i = nearness.argmax(1)
            chosen = pulled[self.inside[rows]]
            worst = torch.baddbmm(self.inside_distance[rows][:, :, None], chosen, d[:, :, None], alpha=2, beta=-1)
            j = worst[:, :, 0].argmin(1)
            each = torch.arange(len(rows), device=d.device)
            a = chosen[each, j] - own[i]
            length = a.square().sum(1).sqrt()
            apart = length > same
            length = torch.where(apart, length, 1.0)
            c = self.inside_distance[rows, j] - self.own_distance[rows, i] - allowed[rows]
            a, c = a / length[:, None], c / (2 * length) + self.margin
            by = torch.where(apart & nearness[each, i].isfinite(), c - (a * d).sum(1), -torch.inf)
            return (a, c, by) if self.box is None else self._boxed(rows, d, a, c, by, self.box)

        return shortest(violated, enough, self.x.shape[1], tolerance=_TOLERANCE * self.space.scale, steps=_STEPS)

    def _boxed(
        self, rows: Tensor, d: Tensor, a: Tensor, c: Tensor, by: Tensor, box: tuple[float, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        low, high = box[0] - self.x[rows], box[1] - self.x[rows]
        out, where = torch.maximum(low - d, d - high).max(1)
        each = torch.arange(len(rows), device=d.device)
        below = (low - d)[each, where] >= (d - high)[each, where]
        unit = torch.zeros_like(a)
        unit[each, where] = torch.where(below, 1.0, -1.0).to(a)
        edge = torch.where(below, low[each, where], -high[each, where])
        wall = out > by
        return torch.where(wall[:, None], unit, a), torch.where(wall, edge, c), torch.maximum(out, by)


def at_once(space: Space, own: int) -> int:
    """How many problems are solved together in bounded memory."""
    return max(1, _CELLS // max(own, _SLOTS * space.points.shape[1]))


def keep_shortest(row: Tensor, examples: Tensor, lengths: Tensor, upper: Tensor, x_adv: Tensor) -> None:
    """Update, in place, the shortest example known of each row; several may be given for one row."""
    best = upper.scatter_reduce(0, row, lengths, "amin")
    better = (lengths <= best[row]) & (lengths < upper[row])
    x_adv[row[better]] = examples[better]
    upper.copy_(best)
