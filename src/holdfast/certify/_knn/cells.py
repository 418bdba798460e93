"""Shortest perturbations into Voronoi cells: where given training points are nearer than those of the input's label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._knn.min_norm import MinNorm, min_norm
from holdfast.certify._knn.space import Space

Box = tuple[float, float] | None
_TOLERANCE = 1e-10  # relative to the scale of the data: accepted violation of a constraint
_STEPS = 1000
_SAME = 1e-9  # relative to the longest w = M x: points nearer than this coincide, and no perturbation separates them
_ENTRIES = 1 << 24  # float64 numbers held by the problems that are solved at once: 128 MiB
_CONSTRAINTS = 32  # active constraints that a problem is expected to have


@dataclass(frozen=True, eq=False)
class Cells:
    """A batch of problems: the shortest d such that ``targets`` are nearer to x + d than the points of x's label.

    All inputs have the same label. The points of that label marked in ``exempt`` may be nearer. With one target and
    nothing exempt this is the QP of Algorithm 2 of ARML (Wang et al. 2020).
    """

    space: Space
    same: Tensor  # (p,) indices of the training points with the label of the inputs
    x: Tensor  # (b, d)
    same_distance: Tensor  # (b, p) squared distances of x to them
    targets: Tensor  # (b, q) indices of training points
    target_distance: Tensor  # (b, q) squared distances of x to them
    exempt: Tensor | None = None  # (b, p) mask
    box: Box = None
    margin: float = 0.0  # distance to keep from every bounding hyperplane; a certificate needs 0

    def solve(self, enough: Tensor) -> MinNorm:
        """Solve each problem, or stop as soon as the proved lower bound on its solution reaches ``enough``."""
        rounding, normals = self.space.rounding(self.x)[:, 0], self.space.normals
        same, coincide = normals[self.same], _SAME * self.space.longest_normal

        def most_violated(rows: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # 2 d·w - dist(x, x_i) is minus the distance from x + d, up to a term that is the same for all points
            nearness = torch.addmm(self.same_distance[rows], d, same.T, alpha=2, beta=-1)
            if self.exempt is not None:
                nearness.masked_fill_(self.exempt[rows], -torch.inf)
            i = nearness.argmax(1)
            target = normals[self.targets[rows]]
            farthest = torch.baddbmm(self.target_distance[rows][:, :, None], target, d[:, :, None], alpha=2, beta=-1)
            j = farthest[:, :, 0].argmin(1)
            each = torch.arange(len(rows), device=d.device)
            a = target[each, j] - same[i]
            length = a.square().sum(1).sqrt()
            distinct = length > coincide
            length = torch.where(distinct, length, 1.0)
            c = self.target_distance[rows, j] - self.same_distance[rows, i] - rounding[rows]
            a, c = a / length[:, None], c / (2 * length) + self.margin
            violation = torch.where(distinct & nearness[each, i].isfinite(), c - (a * d).sum(1), -torch.inf)
            return (a, c, violation) if self.box is None else self._with_box(rows, d, a, c, violation, self.box)

        return min_norm(most_violated, enough, self.x.shape[1], tolerance=_TOLERANCE * self.space.scale, steps=_STEPS)

    def _with_box(
        self, rows: Tensor, d: Tensor, a: Tensor, c: Tensor, violation: Tensor, box: tuple[float, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the constraint (a, c) by a side of the box where d violates that side more."""
        low, high = box[0] - self.x[rows], box[1] - self.x[rows]
        outside, coordinate = torch.maximum(low - d, d - high).max(1)
        each = torch.arange(len(rows), device=d.device)
        below = (low - d)[each, coordinate] >= (d - high)[each, coordinate]
        unit = torch.zeros_like(a)
        unit[each, coordinate] = torch.where(below, 1.0, -1.0).to(a)
        side = torch.where(below, low[each, coordinate], -high[each, coordinate])
        worse = outside > violation
        return torch.where(worse[:, None], unit, a), torch.where(worse, side, c), torch.maximum(outside, violation)


def problems_at_once(space: Space, same: int) -> int:
    """Return how many problems with this many points of the same label fit into bounded memory."""
    return max(1, _ENTRIES // max(same, _CONSTRAINTS * space.points.shape[1]))


def keep_shortest(row: Tensor, examples: Tensor, lengths: Tensor, upper: Tensor, x_adv: Tensor) -> None:
    """Update the shortest adversarial example of each row in place; a row may occur several times."""
    best = upper.scatter_reduce(0, row, lengths, "amin")
    better = (lengths <= best[row]) & (lengths < upper[row])
    x_adv[row[better]] = examples[better]
    upper.copy_(best)
