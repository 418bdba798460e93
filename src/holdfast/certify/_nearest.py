"""The exact radius of the nearest neighbour: the shortest way into the cell of any point with another label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._cells import Box, Cells, at_once, keep_shortest
from holdfast.certify._space import Space, present, squared

_FIRST, _MORE = 4, 64  # candidates of an input tried before the first bound is known, and at once after that
_NUDGES = (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-4, 1.0)


@dataclass(frozen=True)
class Reach:
    """Per input: the proved radius, the length of the shortest verified example (inf: none), and that example."""

    radius: Tensor
    upper: Tensor
    x_adv: Tensor


def exact(space: Space, x: Tensor, label: Tensor, box: Box = None) -> Reach:
    """The radius within which the nearest neighbour keeps this label, from both sides.

    A point x_j of another label takes over where it is at least as near as every point of the own label; the shortest
    way there is a QP (Algorithm 2 of ARML, Wang et al. 2020). The constraint of the nearest own point alone bounds it
    from below; candidates are taken in the order of these bounds until none is below the best example. A candidate is
    given up as soon as its dual value says so. Equal distances count as lost for the radius and not as won for the
    example, so both hold however a classifier breaks ties.
    """
    reach = Reach(torch.full_like(x[:, 0], torch.inf), torch.full_like(x[:, 0], torch.inf), x.clone())
    for own_label in present(label):
        own, others = space.own(own_label), space.others(own_label)
        for rows in torch.split((label == own_label).nonzero()[:, 0], space.rows()):
            radius, upper, x_adv = _search(space, own, others, x[rows], box)
            reach.radius[rows], reach.upper[rows], reach.x_adv[rows] = radius, upper, x_adv
    return reach


def _search(space: Space, own: Tensor, others: Tensor, x: Tensor, box: Box) -> tuple[Tensor, Tensor, Tensor]:
    own_distance, other_distance = space.distances(x, own), space.distances(x, others)
    low = _first_bound(space, own, others, own_distance, other_distance, space.rounding(x))
    radius, upper, x_adv = torch.full_like(x[:, 0], torch.inf), torch.full_like(x[:, 0], torch.inf), x.clone()
    take = _FIRST
    while True:
        bounds, candidates = low.topk(min(take, low.shape[1]), dim=1, largest=False)
        promising = (bounds < upper[:, None]).nonzero()
        if not len(promising):
            return torch.minimum(radius, upper), upper, x_adv
        low.scatter_(1, candidates, torch.inf)
        for part in torch.split(promising, at_once(space, len(own))):
            row, j = part[:, 0], candidates[part[:, 0], part[:, 1]]
            cells = Cells(
                space, own, x[row], own_distance[row], others[j][:, None], other_distance[row, j][:, None], box=box
            )
            found = cells.solve(upper[row])
            radius.scatter_reduce_(0, row, found.bound, "amin")
            examples, lengths = _cross(cells, found.d, found.solved | (found.bound < upper[row]))
            keep_shortest(row, examples, lengths, upper, x_adv)
        take = _MORE


def _first_bound(
    space: Space, own: Tensor, others: Tensor, own_distance: Tensor, other_distance: Tensor, rounding: Tensor
) -> Tensor:
    """The length that the constraint of the nearest own point alone proves for every candidate."""
    nearest, which = own_distance.min(1)
    apart = space.apart(own[which], others)
    gain = other_distance - nearest[:, None] - rounding
    return torch.where(gain > 0, gain / (2 * apart), 0.0)  # a candidate that coincides has no gain


def _cross(cells: Cells, d: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Nudge the ends of the wanted problems over the border, towards the point they come near; their lengths.

    That point is inside its own cell, so any small step towards it is, and the point itself is the last resort; the
    length is infinite where float64 could not confirm that it is nearer than every own point.
    """
    space, target = cells.space, cells.space.points[cells.inside[:, 0]]
    edge = cells.x + d
    examples, lengths = edge.clone(), torch.full_like(d[:, 0], torch.inf)
    for nudge in _NUDGES:
        open_ = (wanted & lengths.isinf()).nonzero()[:, 0]
        if not len(open_):
            break
        tried = edge[open_] + nudge * (target[open_] - edge[open_])
        if cells.box is not None:
            tried = tried.clamp(*cells.box)
        new = squared(space.map(tried), space.mapped[cells.own]).amin(1)
        there = (space.map(tried) - space.mapped[cells.inside[open_, 0]]).square().sum(1)
        won = there + space.rounding(tried)[:, 0] < new
        examples[open_[won]] = tried[won]
        lengths[open_[won]] = (tried[won] - cells.x[open_[won]]).square().sum(1).sqrt()
    return examples, lengths
