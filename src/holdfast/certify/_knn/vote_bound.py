"""A lower bound on the radius of K-nearest-neighbor classifiers, K odd.

Let y be the label of the input x, and call training points with that label its own points. For an own point i and a
point j of another label, eps(i, j) = [dist(x, x_j) - dist(x, x_i)]₊ / (2 ‖M (x_i - x_j)‖) is the length of the shortest
perturbation after which j is at least as near as i. Let k = (K + 1) / 2.

Theorem 1 of ARML (Wang et al. 2020): the label stays y while y has k of the K votes. When it has fewer, some k others
are each at least as near as all own points but k - 1, so the perturbation is at least as long as the k-th smallest over
j of the k-th largest over i of eps(i, j).

With C > 2 classes a larger bound can be proved. Let the label change to c, with n_c = q votes, and write S_q(A, m) for
the m-th smallest over j in A of the q-th largest over i of eps(i, j). As c wins, n_y <= q, and no class has more than q
of the K votes, so q >= K / C.

- q >= k: the k-th nearest of c has a vote and y has at most k - 1, so k points of c are each at least as near as all
  own points but k - 1: the length is at least S_k(c, k).
- q < k: q points of c have a vote and all own points but at most q have none, so the length is at least S_{q+1}(c, q).
  Also K - n_y >= K - q others have a vote, so it is at least S_{q+1}(others, K - q).

Hence the length is at least the minimum, over c and q, of S_k(c, k) where q >= k and of
max(S_{q+1}(c, q), S_{q+1}(others, K - q)) where K / C <= q < k. This is never below Theorem 1, whose bound is
S_k(others, k): S decreases with its lower index and with the set, and increases with m. For C = 2 only q >= k remains
and the two are equal. The proof does not depend on how a classifier breaks ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._knn.cells import problems_at_once
from holdfast.certify._knn.space import Space, present

_ENTRIES = 1 << 23  # values of eps(i, j) computed at once: 64 MiB


def vote_bound(space: Space, x: Tensor, label: Tensor, k: int, near: int | None = None) -> Tensor:
    """Return (b,) radii: no shorter perturbation changes the label that k neighbors vote for.

    ``near`` restricts the bound to that many nearest own points of each input, which is faster and gives a smaller
    radius.
    """
    radius = torch.zeros_like(x[:, 0])
    for one in present(label):
        own, others = space.same_class(one), space.other_classes(one)
        used = int(min(len(own), near or k + 1))  # int: torch does not accept numpy integers
        block = max(1, _ENTRIES // (used * len(others)))
        for rows in torch.split((label == one).nonzero()[:, 0], block):
            bound = _Bound.of(space, x[rows], own, others, k, used)
            if near is None:
                bound.tighten()
            radius[rows] = bound.radius()[0]
    return radius


@dataclass(frozen=True, eq=False)
class _Bound:
    """The bound for inputs of one label, from the largest eps(i, j) over own points i for every other point j.

    At first only the nearest own points are considered, which underestimates these values. ``tighten`` considers all
    own points for those j that determine the radius, until the radius is the one that all pairs give.
    """

    space: Space
    own: Tensor
    own_distance: Tensor
    others: Tensor
    other_distance: Tensor
    rounding: Tensor
    k: int
    top: Tensor  # (b, (k + 1) / 2, n) the largest eps(i, j), descending; zeros where there are too few own points
    seen: Tensor  # (b, n) mask of the points j for which all own points have been considered

    @staticmethod
    def of(space: Space, x: Tensor, own: Tensor, others: Tensor, k: int, used: int) -> _Bound:
        own_distance, other_distance = space.distances(x, own), space.distances(x, others)
        rounding = space.rounding(x)
        nearest, which = own_distance.topk(used, dim=1, largest=False)
        normal_length = space.normal_lengths(own[which.flatten()], others).reshape(*which.shape, len(others))
        lengths = _lengths(other_distance[:, None] - nearest[:, :, None] - rounding[:, :, None], normal_length)
        seen = torch.zeros_like(other_distance, dtype=torch.bool)
        return _Bound(
            space, own, own_distance, others, other_distance, rounding, k, _largest(lengths, (k + 1) // 2), seen
        )

    def tighten(self) -> None:
        """Consider all own points for the points j that determine the radius."""
        while True:
            _, deciding = self.radius()
            pairs = (deciding & ~self.seen).nonzero()
            if not len(pairs):
                return
            for part in torch.split(pairs, problems_at_once(self.space, len(self.own))):
                row, j = part[:, 0], part[:, 1]
                normal_length = self.space.normal_lengths(self.others[j], self.own)
                gap = self.other_distance[row, j][:, None] - self.own_distance[row] - self.rounding[row]
                self.top[row, :, j] = _largest(_lengths(gap, normal_length), self.top.shape[1])
                self.seen[row, j] = True

    def radius(self) -> tuple[Tensor, Tensor]:
        """Return the (b,) radii and a (b, n) mask of the points j that determine them."""
        half, labels = (self.k + 1) // 2, self.space.labels[self.others]
        classes = present(labels)
        radius = torch.full_like(self.own_distance[:, 0], torch.inf)
        deciding = torch.zeros_like(self.seen)
        for q in range(-(-self.k // (len(classes) + 1)), half + 1):
            values = self.top[:, min(q, half - 1)]
            reached, points = _smallest_by_class(values, labels, classes, q)
            deciding.scatter_(1, points, True)
            if q < half:
                rest, points = _smallest(values, self.k - q)
                reached = torch.maximum(reached, rest)
                deciding.scatter_(1, points, True)
            radius = torch.minimum(radius, reached)
        return radius, deciding


def _smallest_by_class(values: Tensor, labels: Tensor, classes: list[int], q: int) -> tuple[Tensor, Tensor]:
    """Return the minimum over classes of the q-th smallest value of the class, and the columns of those q values."""
    best = torch.full_like(values[:, 0], torch.inf)
    columns = torch.zeros(len(values), q, dtype=torch.int64, device=values.device)
    for label in classes:
        members = (labels == label).nonzero()[:, 0]
        if len(members) < q:
            continue
        reached, which = _smallest(values[:, members], q)
        better = reached < best
        best = torch.where(better, reached, best)
        columns = torch.where(better[:, None], members[which], columns)
    return best, columns


def _smallest(values: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the m-th smallest value of each row, infinite if there are fewer, and the columns of the m smallest."""
    lowest, which = values.topk(min(m, values.shape[1]), dim=1, largest=False)
    return (lowest[:, -1] if m <= values.shape[1] else torch.full_like(values[:, 0], torch.inf)), which


def _lengths(gap: Tensor, normal_length: Tensor) -> Tensor:
    return torch.where(gap > 0, gap / (2 * normal_length), 0.0)  # the gap of points that coincide is zero


def _largest(lengths: Tensor, count: int) -> Tensor:
    """Return the ``count`` largest values along dimension 1, descending, padded with zeros."""
    top = lengths.topk(min(count, lengths.shape[1]), dim=1).values
    missing = list(top.shape)
    missing[1] = count - top.shape[1]
    return torch.cat([top, top.new_zeros(missing)], 1)
