"""An attack on K nearest neighbours: from a point with another label, the shortest way into its voters' region, again
and again; every result is judged by the classifier itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._cells import Box, Cells, at_once, keep_shortest
from holdfast.certify._space import Space, elected, present

_PIVOTS, _FAR = 4, 64  # other points to start from: so many that carry another label, sought among so many
_ROUNDS = 8
_MARGIN = 1e-9  # of the data's scale: how far inside a region the way ends, so that float64 sees it there
_WORTH = 1e-6  # relative gain below which a walk ends


def walk(space: Space, x: Tensor, label: Tensor, k: int, box: Box = None) -> Tensor:
    """x_adv: for each input a near point that k votes give another label; the input itself where none was found.

    The pivots are the nearest training points that the classifier labels otherwise (Wang et al. 2019). From each, the
    voters of the winning label shall stay nearer than all own points but those that vote already: a convex region
    that contains the current point and is won all over, up to third labels. Its point nearest to x is next.
    """
    x_adv = x.clone()
    for own_label in present(label):
        own, others = space.own(own_label), space.others(own_label)
        for rows in torch.split((label == own_label).nonzero()[:, 0], space.rows()):
            x_adv[rows] = _from_pivots(space, own_label, own, others, x[rows], k, box)
    return x_adv


def _from_pivots(space: Space, label: int, own: Tensor, others: Tensor, x: Tensor, k: int, box: Box) -> Tensor:
    best, length = x.clone(), torch.full_like(x[:, 0], torch.inf)
    rows, starts = _pivots(space, label, others, x, k)
    many = min(space.rows(), at_once(space, len(own)))
    for part in torch.split(torch.arange(len(rows), device=x.device), many):
        ends = _Walk(space, label, own, x[rows[part]], k, box).run(starts[part])
        lengths = (ends - x[rows[part]]).square().sum(1).sqrt()
        keep_shortest(rows[part], ends, lengths, length, best)
    return best


def _pivots(space: Space, label: int, others: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(which input, starting point): the nearest training points of other labels that are classified otherwise."""
    far = min(_FAR, len(others))
    near = others[space.distances(x, others).topk(far, dim=1, largest=False).indices]
    asked, where = torch.unique(near, return_inverse=True)
    won = (space.predict(space.points[asked], k) != label)[where]
    chosen = won & (won.cumsum(1) <= _PIVOTS)
    return chosen.nonzero()[:, 0], space.points[near[chosen]]


@dataclass(frozen=True, eq=False)
class _Walk:
    """Walks of inputs with one label, one for each row of x."""

    space: Space
    label: int
    own: Tensor
    x: Tensor
    k: int
    box: Box

    def run(self, start: Tensor) -> Tensor:
        """The nearest points found; every one of them has another label."""
        point, length = start.clone(), (start - self.x).square().sum(1).sqrt()
        active = torch.arange(len(start), device=start.device)
        for _ in range(_ROUNDS):
            if not len(active):
                break
            before = length[active]
            for spare in (False, True):
                tried, won = self._shorten(active, point[active], length[active], spare)
                far = (tried - self.x[active]).square().sum(1).sqrt()
                better = won & (far < length[active])
                point[active[better]], length[active[better]] = tried[better], far[better]
            active = active[length[active] < before * (1 - _WORTH)]
        return point

    def _shorten(self, rows: Tensor, point: Tensor, length: Tensor, spare: bool) -> tuple[Tensor, Tensor]:
        """The nearest points of the regions around these, and where they have another label."""
        space, x = self.space, self.x[rows]
        inside, spared = self._region(point, spare)
        inside_distance = (space.map(x)[:, None] - space.mapped[inside]).square().sum(2)
        margin = _MARGIN * space.scale
        own_distance = space.distances(x, self.own)
        cells = Cells(space, self.own, x, own_distance, inside, inside_distance, spared, self.box, margin)
        found = cells.solve(length)
        tried = x + found.d if self.box is None else (x + found.d).clamp(*self.box)
        labels = space.labels[space.distances(tried).topk(self.k, dim=1, largest=False).indices]
        return tried, found.solved & (elected(labels) != self.label)

    def _region(self, point: Tensor, spare: bool) -> tuple[Tensor, Tensor]:
        """(b, q) who shall be nearer than all own points, and (b, p) which own points are spared that.

        As many own points are spared as vote at the point, and one more of the winners is held if there is one; with
        ``spare``, as many as may vote against a majority. Rows with fewer to hold repeat their first.
        """
        space, everyone = self.space, self.space.distances(point)
        labels = space.labels[everyone.topk(self.k, dim=1, largest=False).indices]
        winner = elected(labels)
        if spare:
            spared = torch.full_like(winner, (self.k - 1) // 2)
            held = spared + 1
        else:
            spared = (labels == self.label).sum(1)
            held = torch.minimum(spared + 1, (labels == winner[:, None]).sum(1))
        theirs = everyone.masked_fill(space.labels[None] != winner[:, None], torch.inf)
        lengths, inside = theirs.topk(min(int(held.max()), theirs.shape[1]), dim=1, largest=False)
        short = (torch.arange(inside.shape[1], device=point.device)[None] >= held[:, None]) | lengths.isinf()
        own = everyone[:, self.own]
        nearest = own.topk(min(int(spared.max()), own.shape[1]), dim=1, largest=False).indices
        voting = torch.arange(nearest.shape[1], device=point.device)[None] < spared[:, None]
        return torch.where(short, inside[:, :1], inside), torch.zeros_like(own).bool().scatter_(1, nearest, voting)
