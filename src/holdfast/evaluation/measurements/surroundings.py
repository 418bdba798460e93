"""Measurements of the loss around samples: on a grid, beside its linear expansion, and after each restart."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.attacks.linearity import Linearity
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Batch, Cost, Model, Rows
from holdfast.crafting.view import frozen
from holdfast.data.split import spread
from holdfast.evaluation.judge import CHUNK, attack_and_judge, float32, predict
from holdfast.evaluation.measurements.features import Inside, network_of, small
from holdfast.evaluation.measurements.measurement import Before, Shard
from holdfast.evaluation.subject import Subject
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.records.parts import Part


@dataclass(frozen=True, kw_only=True)
class Surface(Inside):
    """The loss of some samples over two random directions of length eps, (n, points, points).

    Directions depend on seed and sample alone, so all models see the same. Points may leave the box. ``samples`` are
    evenly spaced over a shard; their positions in it are stored.
    """

    name: str = "surface"
    threat: Threat
    points: int = 21
    samples: int
    arrays = frozenset({"losses", "row"})

    @property
    def settings(self) -> Any:
        """The threat, the points of the grid and the number of samples."""
        return [str(self.threat), self.points, self.samples]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """The cross entropy on the grid around each sample."""
        chosen, at = spread(len(shard.samples), self.samples), np.linspace(-1, 1, self.points)
        batch = shard.samples.batch(chosen, shard.device)
        u, v = (self._direction(batch, shard, name) for name in ("u", "v"))
        grid = torch.tensor(np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2), dtype=u.dtype).to(u)
        with torch.no_grad(), float32(), frozen(network_of(subject), shard.rng.fork("surface")) as view:
            rows = [_losses(view, batch.x[i], batch.y[i], grid, torch.stack([u[i], v[i]])) for i in range(len(chosen))]
        losses = np.stack(rows).reshape(-1, self.points, self.points)
        return {"losses": losses, "row": chosen.numpy(), "shown": small(batch.x)}

    def _direction(self, batch: Batch, shard: Shard, name: str) -> Tensor:
        noise = shard.rng.fork(f"direction {name}").at(batch.index).normal(torch.empty_like(batch.x))
        return self.threat.eps * self.threat.norm.steepest(noise)


def _losses(view: Model, x: Tensor, y: Tensor, grid: Tensor, directions: Tensor) -> Any:
    """(points,) the loss at x + a·u + b·v for each row (a, b) of the grid."""
    found = []
    for part in torch.split(grid, CHUNK):
        points = x + torch.einsum("pk,k...->p...", part, directions)
        found.append(cross_entropy(view.outputs(points), Rows.of(y.expand(len(part)))))
    return torch.cat(found).cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Gaps(Inside):
    """The largest linearity gap up to each number of steps of its maximization, (n, eps, steps), for each eps."""

    name: str = "gaps"
    threat: Threat
    eps: tuple[float, ...]
    steps: tuple[int, ...]
    arrays = frozenset({"gaps"})

    @property
    def settings(self) -> Any:
        """The norm, every eps and the numbers of steps."""
        return [str(self.threat), list(self.eps), list(self.steps)]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Climb the gap at every eps with a watch that notes it at every step."""
        model, batch, found = network_of(subject), shard.batch(), []
        for eps in self.eps:
            watch = _Heights()
            # the last point is not evaluated, so one more step shows the gap after the last of ours
            attack = Linearity(threat=replace(self.threat, eps=eps), steps=max(self.steps) + 1)
            attack(model, batch.x, batch.rows(), rng=shard.rng.fork(f"gaps {eps:g}"), watch=watch)
            found.append(np.maximum.accumulate(watch.of(batch), axis=1)[:, list(self.steps)])
        return {"gaps": np.stack(found, 1)}


class _Heights:
    """A watch that notes the linearity gap of each sample at each step; the pass at the clean sample has none."""

    def __init__(self) -> None:
        self.gaps: dict[int, list[float]] = {}

    def __call__(self, rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        if "gradient" in rows.given:
            for index, gap in zip(rows.index.tolist(), loss.tolist(), strict=True):
                self.gaps.setdefault(index, []).append(gap)

    def of(self, batch: Batch) -> Any:
        """(n, steps) the gaps of the samples."""
        return np.array([self.gaps[index] for index in batch.index.tolist()])


@dataclass(frozen=True, kw_only=True)
class Restarts(Inside):
    """The restart of an attack that first fooled each sample, (n,): 0 where it was misclassified clean, inf if none."""

    name: str = "restarts"
    attack: PGD
    recipe: Mapping[str, Any]
    restarts: int
    arrays = frozenset({"first"})

    @property
    def settings(self) -> Any:
        """The attack and the number of restarts."""
        return [dict(self.recipe), str(self.attack.threat), self.restarts]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Attack the samples that still hold from a new start, again and again."""
        model, batch, rng = network_of(subject), shard.batch(), shard.rng.fork("restarts")
        first = torch.full((len(batch),), torch.inf)
        first[(predict(model, batch.x, rng.fork("clean")) != batch.y).cpu()] = 0
        for restart in range(1, self.restarts + 1):
            left = first.isinf().to(batch.y.device)
            rows, fresh = Rows(batch.y[left], batch.index[left]), rng.fork(restart)
            _, verdict = attack_and_judge(
                model, self.attack, batch.x[left], rows, rng=fresh, judge_rng=fresh.fork("judge")
            )
            first[left.cpu()] = torch.where(verdict.fooled.cpu(), restart, torch.inf)
        return {"first": first.numpy()}
