"""Large margin nearest neighbors: targets pulled near, impostors pushed out (Weinberger, Blitzer and Saul 2006)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from holdfast.learners._metric import (
    Array,
    Progress,
    Supervised,
    centred,
    chosen_device,
    number,
    paired,
    tolerance,
    whole,
)
from holdfast.learners._triplets import Classes
from holdfast.neighbors import neighbors

_ROUND = 10  # iterations at most between two searches for impostors
_WIDER = 1.001  # impostors are searched in float32, and a little beyond the margin for its rounding
_LEAST = 1e-3  # share of a round's way that is still tried
_PAIRS = 1 << 15  # pairs whose differences are held at once


class LMNN(Supervised):
    """The metric that keeps a point's nearest of its class nearer, by a margin of one, than any other (NIPS 2005).

    It minimizes ``pull`` times the squared distances to the ``n_neighbors`` targets plus 1 - ``pull`` times the
    hinges of all (point, target, impostor), over the map itself and by L-BFGS. Between two searches, ten iterations
    apart, only found impostors count; of each point the ``max_impostors`` nearest push, which bounds the memory.
    Fitting stops when ten iterations lower the objective by less than ``tol`` of it.
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 3,
        pull: float = 0.5,
        max_impostors: int = 200,
        max_iter: int = 200,
        tol: float = 1e-3,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.pull = pull
        self.max_impostors = max_impostors
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.progress = progress

    def fit(self, X: Array, y: Any) -> LMNN:  # noqa: N803
        """Learn the metric from points and their labels."""
        whole(n_neighbors=self.n_neighbors, max_impostors=self.max_impostors, max_iter=self.max_iter)
        tolerance(self.tol)
        if not (number(self.pull) and 0 < self.pull < 1):
            raise ValueError(f"pull is {self.pull!r} but must lie between 0 and 1")
        device = chosen_device(self.device)
        points, labels, _ = paired(self, X, y)
        classes = Classes.of(torch.from_numpy(labels))
        x = centred(points)[classes.order].to(device)
        objective = Objective(x, classes, self.n_neighbors, self.pull, self.max_impostors)
        self.components_ = self._descend(objective).double().cpu().numpy()
        return self

    def _descend(self, objective: Objective) -> Tensor:
        components = torch.eye(objective.x.shape[1], dtype=objective.x.dtype, device=objective.x.device)
        value, self.n_iter_, many = objective.search(components), 0, 2
        while self.n_iter_ < self.max_iter:
            moved, iterations = _lower(objective, components, min(many, self.max_iter - self.n_iter_))
            self.n_iter_ += iterations
            moved, now, way = _back(objective, components, moved, value)
            many = min(2 * many, _ROUND) if way == 1 else max(1, many // 2)
            fell, components, value = value - now, moved, now
            if self.progress is not None:
                self.progress(self.n_iter_, value)
            if fell <= self.tol * value or not iterations:  # no iteration: the gradient is zero
                return components
        warnings.warn(
            f"LMNN's objective still falls after {self.max_iter} iterations; raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )
        return components


def _lower(objective: Objective, components: Tensor, many: int) -> tuple[Tensor, int]:
    """So many iterations of L-BFGS with the impostors known now."""
    moved = components.clone()
    optimizer = torch.optim.LBFGS([moved], max_iter=many, line_search_fn="strong_wolfe")

    def closure() -> float:
        value, moved.grad = objective(moved)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return moved, int(optimizer.state[moved]["n_iter"])


def _back(objective: Objective, start: Tensor, end: Tensor, value: float) -> tuple[Tensor, float, float]:
    """The first point on the way back from end to start that is lower than the start once all its impostors are known.

    On the way there impostors may come in that nobody knew. With the point come its value and the share of the way.
    """
    way = 1.0
    while way > _LEAST:
        moved = torch.lerp(start, end, way)
        now = objective.search(moved, below=value)
        if now < value:
            return moved, now, way
        way /= 2
    objective.search(start)
    return start, value, 0.0


@dataclass(eq=False)
class Objective:
    """LMNN's objective and its gradient, for points sorted by class."""

    x: Tensor
    classes: Classes
    k: int
    pull: float
    most: int

    def __post_init__(self) -> None:
        self.targets, self.known = _targets(self.x, self.classes, self.k)

    def __call__(self, components: Tensor) -> tuple[float, Tensor]:
        """The objective over the impostors that were found last, and its gradient by the map."""
        z = self.x @ components.T
        near = self._near(z)
        anchor, impostor = self.impostors
        gap = 1 + near[anchor] - self._lengths(z, anchor, impostor)[:, None]
        push, active = 1 - self.pull, (gap > 0).to(z)
        value = self.pull * near[self.known].double().sum() + push * F.relu(gap).double().sum()
        pulled = torch.zeros_like(near).index_add_(0, anchor, push * active) + self.pull
        rows = torch.arange(len(z), device=z.device)[:, None].expand_as(near)[self.known]
        first, second = torch.cat([rows, anchor]), torch.cat([self.targets[self.known], impostor])
        weight = torch.cat([pulled[self.known], -push * active.sum(1)])
        return value.item(), 2 * _laplacian(z, first, second, weight).T @ self.x

    def search(self, components: Tensor, below: float = inf) -> float:
        """Find the impostors of each point anew, (anchor, impostor) as (2, p); the objective with them, in float32.

        Far from the minimum there may be very many: the search ends, and finds none, once the value is not ``below``.
        """
        z = (self.x @ components.T).float()
        near = self._near(z)
        margin, squares, found = _WIDER * (1 + near.amax(1)), z.square().sum(1), []
        value = self.pull * near[self.known].double().sum()
        for rows, span in self.classes.blocks():
            table = torch.addmm(squares, z[rows], z.T, alpha=-2).add_(squares[rows, None])
            table[:, span] = torch.inf
            inside = table < margin[rows, None]
            pairs = inside.nonzero()
            crowded = (pairs[:, 0].bincount(minlength=len(table)) > self.most).nonzero()[:, 0]
            if len(crowded):
                kept = table[crowded].topk(self.most, dim=1, largest=False, sorted=False).indices
                inside[crowded] &= torch.zeros_like(inside[crowded]).scatter_(1, kept, True)
                pairs = inside.nonzero()
            gap = 1 + near[rows][pairs[:, 0]] - table[inside][:, None]
            value += (1 - self.pull) * F.relu(gap).double().sum()
            if value >= below:
                return inf
            found.append(pairs + torch.tensor([rows.start, 0], device=z.device))
        self.impostors = torch.cat(found).T
        return value.item()

    def _near(self, z: Tensor) -> Tensor:
        """Squared distances to the targets, (n, k); minus infinity where a class is too small to have one."""
        rows = torch.arange(len(z), device=z.device)[:, None].expand_as(self.targets)
        lengths = self._lengths(z, rows.flatten(), self.targets.flatten()).reshape(self.targets.shape)
        return lengths.masked_fill(~self.known, -torch.inf)

    def _lengths(self, z: Tensor, first: Tensor, second: Tensor) -> Tensor:
        pairs = zip(torch.split(first, _PAIRS), torch.split(second, _PAIRS), strict=True)
        return torch.cat([(z[a] - z[b]).square().sum(1) for a, b in pairs])


def _targets(x: Tensor, classes: Classes, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of its class for each point in the Euclidean metric, and which of them exist."""
    targets = torch.zeros(len(x), k, dtype=torch.int64, device=x.device)
    known = torch.zeros_like(targets, dtype=torch.bool)
    for a, b in zip(classes.ends, classes.ends[1:], strict=False):
        kept = min(k, b - a - 1)
        index = neighbors(x[a:b], x[a:b], kept + 1)[1]
        own = index == torch.arange(b - a, device=x.device)[:, None]
        own[~own.any(1), -1] = True  # among many equal points a point may not be among its own nearest
        targets[a:b, :kept] = index[~own].reshape(b - a, kept) + a
        known[a:b, :kept] = True
    return targets, known


def _laplacian(z: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Row i is the sum of weight * (z_i - z_j) over the pairs (i, j) in either order."""
    index = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    both = torch.cat([weight, weight])
    degree = torch.zeros_like(z[:, 0]).index_add_(0, index[0], both)
    links = torch.sparse_coo_tensor(index, both, (len(z), len(z)), check_invariants=False)
    moved: Tensor = torch.sparse.mm(links, z)
    return degree[:, None] * z - moved
