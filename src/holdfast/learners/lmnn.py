"""Large margin nearest neighbors (Weinberger, Blitzer and Saul 2006)."""

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.learners import _metric
from holdfast.learners._metric import Array, Progress, Supervised
from holdfast.learners._triplets import Classes
from holdfast.neighbors import neighbors

_ROUND = 10  # largest number of iterations between two searches for impostors
_WIDER = 1.001  # factor on the margin in the search for impostors, for the rounding errors of float32
_SMALLEST_STEP = 1e-3  # fraction of a round's step below which backtracking gives up
_PAIRS = 1 << 15  # pairs whose differences are computed at once


class LMNN(Supervised):
    """The metric that keeps target neighbors nearer than points of other classes by a margin of one (NIPS 2005).

    L-BFGS minimizes, over the linear map, ``pull`` times the squared distances to the ``n_neighbors`` targets (the
    nearest points of the same class) plus 1 - ``pull`` times the hinge losses of all (point, target, impostor). The
    impostors are searched every ten iterations and kept in between; only the ``max_impostors`` nearest of each point
    count, which bounds the memory. Fitting stops when ten iterations reduce the objective by less than ``tol``,
    relative.
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

    def fit(self, X: Array, y: Any) -> "LMNN":  # noqa: N803
        """Learn the metric from labeled points."""
        _metric.check_positive_int(
            n_neighbors=self.n_neighbors, max_impostors=self.max_impostors, max_iter=self.max_iter
        )
        _metric.check_tolerance(self.tol)
        if not (_metric.is_number(self.pull) and 0 < self.pull < 1):
            raise ValueError(f"pull is {self.pull!r} but must lie between 0 and 1")
        device = _metric.choose_device(self.device)
        points, labels, _ = _metric.check_pairs(self, X, y)
        classes = Classes.of(torch.from_numpy(labels))
        x = _metric.centered(points)[classes.order].to(device)
        objective = Objective(x, classes, self.n_neighbors, self.pull, self.max_impostors)
        self.components_ = self._descend(objective).double().cpu().numpy()
        return self

    def _descend(self, objective: "Objective") -> Tensor:
        components = torch.eye(objective.x.shape[1], dtype=objective.x.dtype, device=objective.x.device)
        value, self.n_iter_, count = objective.search(components), 0, 2
        while self.n_iter_ < self.max_iter:
            end, iterations = _minimize(objective, components, min(count, self.max_iter - self.n_iter_))
            self.n_iter_ += iterations
            end, end_value, step = _backtrack(objective, components, end, value)
            count = min(2 * count, _ROUND) if step == 1 else max(1, count // 2)
            decrease, components, value = value - end_value, end, end_value
            if self.progress is not None:
                self.progress(self.n_iter_, value)
            if decrease <= self.tol * value or not iterations:  # without an iteration the gradient is zero
                return components
        _metric.warn_not_converged(f"LMNN's objective still falls after {self.max_iter} iterations", stacklevel=3)
        return components


def _minimize(objective: "Objective", start: Tensor, count: int) -> tuple[Tensor, int]:
    """Run up to ``count`` L-BFGS iterations with the known impostors; return the map and the number of iterations."""
    components = start.clone()
    optimizer = torch.optim.LBFGS([components], max_iter=count, line_search_fn="strong_wolfe")

    def closure() -> float:
        value, components.grad = objective(components)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return components, int(optimizer.state[components]["n_iter"])


def _backtrack(objective: "Objective", start: Tensor, end: Tensor, value: float) -> tuple[Tensor, float, float]:
    """Halve the step from start to end until the objective with all impostors is lower than at the start.

    The end may have impostors that were unknown while minimizing. Returns the point, its value and the step size.
    """
    step = 1.0
    while step > _SMALLEST_STEP:
        point = torch.lerp(start, end, step)
        point_value = objective.search(point, below=value)
        if point_value < value:
            return point, point_value, step
        step /= 2
    objective.search(start)
    return start, value, 0.0


@dataclass(eq=False)
class Objective:
    """The objective of LMNN and its gradient, for points sorted by class."""

    x: Tensor
    classes: Classes
    k: int
    pull: float
    max_impostors: int

    def __post_init__(self) -> None:
        self.targets, self.exists = _targets(self.x, self.classes, self.k)

    def __call__(self, components: Tensor) -> tuple[float, Tensor]:
        """Return the objective with the impostors of the last search, and its gradient with respect to the map."""
        z = self.x @ components.T
        near = self._target_distances(z)
        anchor, impostor = self.impostors
        gap = 1 + near[anchor] - self._distances(z, anchor, impostor)[:, None]
        push, active = 1 - self.pull, (gap > 0).to(z)
        value = self.pull * near[self.exists].double().sum() + push * F.relu(gap).double().sum()
        pulled = torch.zeros_like(near).index_add_(0, anchor, push * active) + self.pull
        rows = torch.arange(len(z), device=z.device)[:, None].expand_as(near)[self.exists]
        first, second = torch.cat([rows, anchor]), torch.cat([self.targets[self.exists], impostor])
        weight = torch.cat([pulled[self.exists], -push * active.sum(1)])
        return value.item(), 2 * _laplacian(z, first, second, weight).T @ self.x

    def search(self, components: Tensor, below: float = inf) -> float:
        """Search the impostors, stored as (2, p) pairs (anchor, impostor), and return the objective in float32.

        Far from the minimum there may be very many impostors: the search stops as soon as the value is not ``below``,
        returns infinity and keeps the impostors of the previous search.
        """
        z = (self.x @ components.T).float()
        near = self._target_distances(z)
        margin, squares, found = _WIDER * (1 + near.amax(1)), z.square().sum(1), []
        value = self.pull * near[self.exists].double().sum()
        for rows, span in self.classes.blocks():
            table = torch.addmm(squares, z[rows], z.T, alpha=-2).add_(squares[rows, None])
            table[:, span] = torch.inf
            inside = table < margin[rows, None]
            pairs = inside.nonzero()
            crowded = (pairs[:, 0].bincount(minlength=len(table)) > self.max_impostors).nonzero()[:, 0]
            if len(crowded):
                kept = table[crowded].topk(self.max_impostors, dim=1, largest=False, sorted=False).indices
                inside[crowded] &= torch.zeros_like(inside[crowded]).scatter_(1, kept, True)
                pairs = inside.nonzero()
            gap = 1 + near[rows][pairs[:, 0]] - table[inside][:, None]
            value += (1 - self.pull) * F.relu(gap).double().sum()
            if value >= below:
                return inf
            found.append(pairs + torch.tensor([rows.start, 0], device=z.device))
        self.impostors = torch.cat(found).T
        return value.item()

    def _target_distances(self, z: Tensor) -> Tensor:
        """Return the (n, k) squared distances to the targets; minus infinity where the class has too few points."""
        rows = torch.arange(len(z), device=z.device)[:, None].expand_as(self.targets)
        lengths = self._distances(z, rows.flatten(), self.targets.flatten()).reshape(self.targets.shape)
        return lengths.masked_fill(~self.exists, -torch.inf)

    def _distances(self, z: Tensor, first: Tensor, second: Tensor) -> Tensor:
        pairs = zip(torch.split(first, _PAIRS), torch.split(second, _PAIRS), strict=True)
        return torch.cat([(z[a] - z[b]).square().sum(1) for a, b in pairs])


def _targets(x: Tensor, classes: Classes, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest points of the same class in the Euclidean metric, (n, k), and a mask of those that exist."""
    targets = torch.zeros(len(x), k, dtype=torch.int64, device=x.device)
    exists = torch.zeros_like(targets, dtype=torch.bool)
    for a, b in zip(classes.ends, classes.ends[1:], strict=False):
        kept = min(k, b - a - 1)
        index = neighbors(x[a:b], x[a:b], kept + 1)[1]
        itself = index == torch.arange(b - a, device=x.device)[:, None]
        itself[~itself.any(1), -1] = True  # with many equal points, a point may be missing among its nearest
        targets[a:b, :kept] = index[~itself].reshape(b - a, kept) + a
        exists[a:b, :kept] = True
    return targets, exists


def _laplacian(z: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return rows i: the sum of weight * (z_i - z_j) over the pairs (i, j) in either order."""
    index = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    both = torch.cat([weight, weight])
    degree = torch.zeros_like(z[:, 0]).index_add_(0, index[0], both)
    weights = torch.sparse_coo_tensor(index, both, (len(z), len(z)), check_invariants=False)
    neighbors_sum: Tensor = torch.sparse.mm(weights, z)
    return degree[:, None] * z - neighbors_sum
