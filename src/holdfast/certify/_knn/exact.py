"""The exact radius of the 1-nearest-neighbor classifier: the distance to the nearest Voronoi cell of another label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._knn.cells import Box, Cells, keep_shortest, problems_at_once
from holdfast.certify._knn.space import Space, present, squared_distances

_FIRST, _MORE = 4, 64  # candidates per input tried in the first iteration, and in each later one
_OVERSHOOTS = (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-4, 1.0)


@dataclass(frozen=True)
class ExactRadius:
    """Per input: the proved radius, the shortest verified adversarial example and its length (infinite if none)."""

    radius: Tensor
    upper: Tensor
    x_adv: Tensor


def exact_radius(space: Space, x: Tensor, label: Tensor, box: Box = None) -> ExactRadius:
    """Compute the radius within which the nearest neighbor of x has this label, bounded from both sides.

    A candidate, a training point of another label, decides the prediction where it is at least as near as every point
    of the input's label; the shortest perturbation to such a place is a QP (Algorithm 2 of ARML, Wang et al. 2020).
    The constraint of the nearest point of the input's label alone gives a lower bound in closed form. Candidates are
    tried in the order of these bounds until none is below the shortest example found, and a candidate is abandoned as
    soon as its dual value exceeds that length. Ties count against the radius and do not count as examples, so both
    bounds hold for every tie-breaking rule.
    """
    found = ExactRadius(torch.full_like(x[:, 0], torch.inf), torch.full_like(x[:, 0], torch.inf), x.clone())
    for one in present(label):
        same, others = space.same_class(one), space.other_classes(one)
        for rows in torch.split((label == one).nonzero()[:, 0], space.block_size()):
            radius, upper, x_adv = _search(space, same, others, x[rows], box)
            found.radius[rows], found.upper[rows], found.x_adv[rows] = radius, upper, x_adv
    return found


def _search(space: Space, same: Tensor, others: Tensor, x: Tensor, box: Box) -> tuple[Tensor, Tensor, Tensor]:
    same_distance, other_distance = space.distances(x, same), space.distances(x, others)
    low = _closed_form_bound(space, same, others, same_distance, other_distance, space.rounding(x))
    radius, upper, x_adv = torch.full_like(x[:, 0], torch.inf), torch.full_like(x[:, 0], torch.inf), x.clone()
    take = _FIRST
    while True:
        bounds, candidates = low.topk(min(take, low.shape[1]), dim=1, largest=False)
        promising = (bounds < upper[:, None]).nonzero()
        if not len(promising):
            return torch.minimum(radius, upper), upper, x_adv
        low.scatter_(1, candidates, torch.inf)
        for part in torch.split(promising, problems_at_once(space, len(same))):
            row, j = part[:, 0], candidates[part[:, 0], part[:, 1]]
            cells = Cells(
                space, same, x[row], same_distance[row], others[j][:, None], other_distance[row, j][:, None], box=box
            )
            found = cells.solve(upper[row])
            radius.scatter_reduce_(0, row, found.bound, "amin")
            examples, lengths = _cross_boundary(cells, found.d, found.solved | (found.bound < upper[row]))
            keep_shortest(row, examples, lengths, upper, x_adv)
        take = _MORE


def _closed_form_bound(
    space: Space, same: Tensor, others: Tensor, same_distance: Tensor, other_distance: Tensor, rounding: Tensor
) -> Tensor:
    """Return, for every candidate, the lower bound given by the nearest point of the input's label alone."""
    nearest, which = same_distance.min(1)
    normal_length = space.normal_lengths(same[which], others)
    gap = other_distance - nearest[:, None] - rounding
    return torch.where(gap > 0, gap / (2 * normal_length), 0.0)  # the gap of points that coincide is zero


def _cross_boundary(cells: Cells, d: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Move the solutions d slightly towards their target, across the decision boundary; return examples and lengths.

    The target lies inside its cell, so every step towards it enters the cell, and the target itself is tried last. The
    length is infinite where float64 does not confirm that the target is nearer than all points of the input's label.
    """
    space, target = cells.space, cells.space.points[cells.targets[:, 0]]
    boundary = cells.x + d
    examples, lengths = boundary.clone(), torch.full_like(d[:, 0], torch.inf)
    for overshoot in _OVERSHOOTS:
        rows = (wanted & lengths.isinf()).nonzero()[:, 0]
        if not len(rows):
            break
        tried = boundary[rows] + overshoot * (target[rows] - boundary[rows])
        if cells.box is not None:
            tried = tried.clamp(*cells.box)
        same_distance = squared_distances(space.map(tried), space.mapped[cells.same]).amin(1)
        target_distance = (space.map(tried) - space.mapped[cells.targets[rows, 0]]).square().sum(1)
        crossed = target_distance + space.rounding(tried)[:, 0] < same_distance
        examples[rows[crossed]] = tried[crossed]
        lengths[rows[crossed]] = (tried[crossed] - cells.x[rows[crossed]]).square().sum(1).sqrt()
    return examples, lengths
