"""A lower bound on the radius of K nearest neighbours, K odd.

For an own point i and another j, eps(i, j) = [d(x, x_j) - d(x, x_i)]₊ / (2 ‖M (x_i - x_j)‖) is the shortest way to
where j is at least as near as i. Let k = (K + 1) / 2.

Theorem 1 of ARML (Wang et al. 2020): the label stays y while y has k of the K votes. When it has fewer, some k others
are each at least as near as all own points but k - 1, so the perturbation is at least as long as the k-th smallest over
j of the k-th largest over i of eps(i, j).

With C > 2 classes more can be said. Let the label change to c, with n_c = q votes, and write S_q(A, m) for the m-th
smallest over j in A of the q-th largest over i of eps(i, j). As c wins, n_y <= q, and no class has more than q of the K
votes, so q >= K / C.

- q >= k: the k-th nearest of c has a vote and y has at most k - 1, so k points of c are each at least as near as all
  own points but k - 1: the length is at least S_k(c, k).
- q < k: q points of c have a vote and all own points but at most q have none, so the length is at least S_{q+1}(c, q).
  Also K - n_y >= K - q others have a vote, so it is at least S_{q+1}(others, K - q).

Hence the length is at least the minimum, over c and q, of S_k(c, k) where q >= k and of
max(S_{q+1}(c, q), S_{q+1}(others, K - q)) where K / C <= q < k. This is never below Theorem 1, whose bound is
S_k(others, k): S falls with its lower index and with the set, and rises with m. For C = 2 only q >= k remains and the
two are equal. Nothing here depends on how a classifier breaks ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._cells import at_once
from holdfast.certify._space import Space, present

_CELLS = 1 << 23


def voting(space: Space, x: Tensor, label: Tensor, k: int, near: int | None = None) -> Tensor:
    """(b,) lengths below which no perturbation changes the label of k votes; fewer own points: looser, faster."""
    radius = torch.zeros_like(x[:, 0])
    for own_label in present(label):
        own, others = space.own(own_label), space.others(own_label)
        used = int(min(len(own), near or k + 1))  # torch takes no numpy integers
        at_a_time = max(1, _CELLS // (used * len(others)))
        for rows in torch.split((label == own_label).nonzero()[:, 0], at_a_time):
            election = _Election.of(space, x[rows], own, others, k, used)
            if near is None:
                election.complete()
            radius[rows] = election.radius()[0]
    return radius


@dataclass(frozen=True, eq=False)
class _Election:
    """Inputs of one label, with the largest eps(i, j) over own points i known for every other point j.

    At first only the nearest own points are looked at, which gives a lower bound for each; ``complete`` looks at all of
    them for those points j that decide the radius, until it is what all would have given.
    """

    space: Space
    own: Tensor
    own_distance: Tensor
    others: Tensor
    other_distance: Tensor
    rounding: Tensor
    k: int
    top: Tensor  # (b, half, n) the largest eps(i, j), descending; zeros where there are not enough own points
    seen: Tensor  # (b, n) whether all own points were looked at

    @staticmethod
    def of(space: Space, x: Tensor, own: Tensor, others: Tensor, k: int, used: int) -> _Election:
        own_distance, other_distance = space.distances(x, own), space.distances(x, others)
        rounding = space.rounding(x)
        nearest, which = own_distance.topk(used, dim=1, largest=False)
        apart = space.apart(own[which.flatten()], others).reshape(*which.shape, len(others))
        lengths = _lengths(other_distance[:, None] - nearest[:, :, None] - rounding[:, :, None], apart)
        seen = torch.zeros_like(other_distance, dtype=torch.bool)
        return _Election(
            space, own, own_distance, others, other_distance, rounding, k, _largest(lengths, (k + 1) // 2), seen
        )

    def complete(self) -> None:
        """Look at all own points where it matters."""
        while True:
            _, needed = self.radius()
            pairs = (needed & ~self.seen).nonzero()
            if not len(pairs):
                return
            for part in torch.split(pairs, at_once(self.space, len(self.own))):
                row, j = part[:, 0], part[:, 1]
                apart = self.space.apart(self.others[j], self.own)
                gain = self.other_distance[row, j][:, None] - self.own_distance[row] - self.rounding[row]
                self.top[row, :, j] = _largest(_lengths(gain, apart), self.top.shape[1])
                self.seen[row, j] = True

    def radius(self) -> tuple[Tensor, Tensor]:
        """(b,) the bound, and (b, n) the points j that decide it."""
        half, labels = (self.k + 1) // 2, self.space.labels[self.others]
        classes = present(labels)
        radius = torch.full_like(self.own_distance[:, 0], torch.inf)
        needed = torch.zeros_like(self.seen)
        for q in range(-(-self.k // (len(classes) + 1)), half + 1):
            values = self.top[:, min(q, half - 1)]
            reached, who = _winner(values, labels, classes, q)
            needed.scatter_(1, who, True)
            if q < half:
                rest, who = _smallest(values, self.k - q)
                reached = torch.maximum(reached, rest)
                needed.scatter_(1, who, True)
            radius = torch.minimum(radius, reached)
        return radius, needed


def _winner(values: Tensor, labels: Tensor, classes: list[int], q: int) -> tuple[Tensor, Tensor]:
    """The smallest over classes of the q-th smallest value within one, and the positions of that class's q."""
    best = torch.full_like(values[:, 0], torch.inf)
    who = torch.zeros(len(values), q, dtype=torch.int64, device=values.device)
    for label in classes:
        members = (labels == label).nonzero()[:, 0]
        if len(members) < q:
            continue
        reached, which = _smallest(values[:, members], q)
        better = reached < best
        best = torch.where(better, reached, best)
        who = torch.where(better[:, None], members[which], who)
    return best, who


def _smallest(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m-th smallest of each row, inf where there are fewer, and the positions of the m smallest."""
    lowest, which = values.topk(min(m, values.shape[1]), dim=1, largest=False)
    return (lowest[:, -1] if m <= values.shape[1] else torch.full_like(values[:, 0], torch.inf)), which


def _lengths(gain: Tensor, apart: Tensor) -> Tensor:
    return torch.where(gain > 0, gain / (2 * apart), 0.0)  # points that coincide have no gain


def _largest(lengths: Tensor, many: int) -> Tensor:
    """The largest along dimension 1, descending, filled up with zeros."""
    top = lengths.topk(min(many, lengths.shape[1]), dim=1).values
    missing = list(top.shape)
    missing[1] = many - top.shape[1]
    return torch.cat([top, top.new_zeros(missing)], 1)
