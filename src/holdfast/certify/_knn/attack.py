"""An attack on K-nearest-neighbor classifiers that gives the upper bound of a certificate.

Starting from a training point with another label, it moves repeatedly to the point nearest to the input within a convex
region in which the label of the start wins the vote. The classifier itself verifies every result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._knn.cells import Box, Cells, keep_shortest, problems_at_once
from holdfast.certify._knn.space import Space, present
from holdfast.neighbors import vote

_STARTS, _CANDIDATES = 4, 64  # starting points per input, chosen among this many nearest points of other labels
_ROUNDS = 8
_MARGIN = 1e-9  # relative to the scale of the data: distance from the boundary, so that float64 confirms the label
_IMPROVEMENT = 1e-6  # relative; the search ends when a round gains less


def attack(space: Space, x: Tensor, label: Tensor, k: int, box: Box = None) -> Tensor:
    """Return a nearby point with another label for each input, or the input itself where none is found.

    The search starts from the nearest training points that the classifier assigns another label (Wang et al. 2019). In
    each step, points of the winning label must stay nearer than all points of the input's label except as many as
    vote already. These constraints define a convex region that contains the current point and in which the input's
    label loses, unless a third label interferes. The next point is the point of the region nearest to x.
    """
    x_adv = x.clone()
    for one in present(label):
        same, others = space.same_class(one), space.other_classes(one)
        for rows in torch.split((label == one).nonzero()[:, 0], space.block_size()):
            x_adv[rows] = _attack_class(space, one, same, others, x[rows], k, box)
    return x_adv


def _attack_class(space: Space, label: int, same: Tensor, others: Tensor, x: Tensor, k: int, box: Box) -> Tensor:
    best, length = x.clone(), torch.full_like(x[:, 0], torch.inf)
    rows, starts = _starts(space, label, others, x, k)
    block = min(space.block_size(), problems_at_once(space, len(same)))
    for part in torch.split(torch.arange(len(rows), device=x.device), block):
        ends = _Descent(space, label, same, x[rows[part]], k, box).run(starts[part])
        lengths = (ends - x[rows[part]]).square().sum(1).sqrt()
        keep_shortest(rows[part], ends, lengths, length, best)
    return best


def _starts(space: Space, label: int, others: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return pairs (row of x, starting point): the nearest training points that are classified with another label."""
    candidates = min(_CANDIDATES, len(others))
    near = others[space.distances(x, others).topk(candidates, dim=1, largest=False).indices]
    unique, inverse = torch.unique(near, return_inverse=True)
    misclassified = (space.predict(space.points[unique], k) != label)[inverse]
    chosen = misclassified & (misclassified.cumsum(1) <= _STARTS)
    return chosen.nonzero()[:, 0], space.points[near[chosen]]


@dataclass(frozen=True, eq=False)
class _Descent:
    """The search from one starting point per row of x; all inputs have the same label."""

    space: Space
    label: int
    same: Tensor  # indices of the training points with that label
    x: Tensor
    k: int
    box: Box

    def run(self, start: Tensor) -> Tensor:
        """Return the nearest points found; all of them have another label."""
        point, length = start.clone(), (start - self.x).square().sum(1).sqrt()
        active = torch.arange(len(start), device=start.device)
        for _ in range(_ROUNDS):
            if not len(active):
                break
            before = length[active]
            for majority in (False, True):
                tried, fooled = self._step(active, point[active], length[active], majority)
                tried_length = (tried - self.x[active]).square().sum(1).sqrt()
                better = fooled & (tried_length < length[active])
                point[active[better]], length[active[better]] = tried[better], tried_length[better]
            active = active[length[active] < before * (1 - _IMPROVEMENT)]
        return point

    def _step(self, rows: Tensor, point: Tensor, length: Tensor, majority: bool) -> tuple[Tensor, Tensor]:
        """Return the nearest points of the regions around these points, and a mask of those with another label."""
        space, x = self.space, self.x[rows]
        targets, exempt = self._region(point, majority)
        target_distance = (space.map(x)[:, None] - space.mapped[targets]).square().sum(2)
        margin = _MARGIN * space.scale
        same_distance = space.distances(x, self.same)
        cells = Cells(space, self.same, x, same_distance, targets, target_distance, exempt, self.box, margin)
        found = cells.solve(length)
        tried = x + found.d if self.box is None else (x + found.d).clamp(*self.box)
        labels = space.labels[space.distances(tried).topk(self.k, dim=1, largest=False).indices]
        return tried, found.solved & (vote(labels) != self.label)

    def _region(self, point: Tensor, majority: bool) -> tuple[Tensor, Tensor]:
        """Return the (b, q) targets of :class:`Cells` and the (b, p) mask of exempt points of the input's label.

        As many points of the input's label are exempt as vote at ``point``, and one more target is needed if the winner
        has one. With ``majority``, the targets are just a majority, so that all other neighbors may be exempt. Rows
        with fewer targets repeat their first one.
        """
        space, distances = self.space, self.space.distances(point)
        labels = space.labels[distances.topk(self.k, dim=1, largest=False).indices]
        winner = vote(labels)
        if majority:
            n_exempt = torch.full_like(winner, (self.k - 1) // 2)
            n_targets = n_exempt + 1
        else:
            n_exempt = (labels == self.label).sum(1)
            n_targets = torch.minimum(n_exempt + 1, (labels == winner[:, None]).sum(1))
        of_winner = distances.masked_fill(space.labels[None] != winner[:, None], torch.inf)
        lengths, targets = of_winner.topk(min(int(n_targets.max()), of_winner.shape[1]), dim=1, largest=False)
        surplus = (torch.arange(targets.shape[1], device=point.device)[None] >= n_targets[:, None]) | lengths.isinf()
        same = distances[:, self.same]
        nearest = same.topk(min(int(n_exempt.max()), same.shape[1]), dim=1, largest=False).indices
        exempt = torch.arange(nearest.shape[1], device=point.device)[None] < n_exempt[:, None]
        return torch.where(surplus, targets[:, :1], targets), torch.zeros_like(same).bool().scatter_(1, nearest, exempt)
