"""The loop of gradient attacks that search for the shortest perturbation.

A sample that is finished leaves the micro-batch and the next one takes its slot. Everything that a search remembers has
one row per sample, so the result for a sample does not depend on the others in the batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, pi
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._checks import check, check_outputs
from holdfast.attacks._gradients import gradient
from holdfast.contracts import Cost, Keep, Model, Outputs, Rows, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import crafting
from holdfast.losses.classification import logit_difference
from holdfast.rng import Rng

_ROUNDING = 64  # units in the last place of the largest logit: the judge may multiply in another order

S = TypeVar("S", bound=tuple[Tensor, ...])
"""The state of a search: a NamedTuple of tensors with one row per sample, first the next point to evaluate."""


@dataclass(frozen=True)
class Seen:
    """The evaluated points of a micro-batch: the loss and its gradient there, and whether the attack succeeds.

    ``distance`` is the length of the perturbation and ``shortest`` that of the shortest success so far, this point
    included; it is infinite if there is none. ``rng`` is keyed by sample.
    """

    x: Tensor
    x_adv: Tensor
    loss: Tensor
    grad: Tensor
    reached: Tensor
    distance: Tensor
    shortest: Tensor
    rng: Rng


class ClosestAttack(StandaloneAttack, ABC, Generic[S]):
    """An attack that returns the shortest successful perturbation among the points that it evaluates.

    Where none succeeds it returns the point with the largest loss. A subclass says where a search begins and how it
    moves on. Points at which the model decides by less than the rounding of its logits do not count as successes,
    because another order of summation may decide otherwise.
    """

    steps: int
    targeted: bool
    kappa: float = 0.0
    keep: Keep = "closest"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps} but an attack needs at least one")

    @property
    def evaluations(self) -> int:
        """About how many points a sample needs."""
        return self.steps

    @abstractmethod
    def begin(self, x: Tensor) -> S:
        """The state at the start; the first point is x, so that misclassified samples have distance zero."""

    @abstractmethod
    def move(self, seen: Seen, state: S) -> tuple[S, Tensor]:
        """The state with the next points, which lie inside the threat, and (b,) which samples are finished."""

    def loss(self, out: Outputs, rows: Rows) -> Tensor:
        """The loss to climb."""
        return difference(out, rows, self.targeted)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """The closest adversarial inputs found for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat, self.targeted)
        passes = self.evaluations * ceil(len(x) / microbatch.size())
        # bfloat16 is too coarse for points that are right at the decision boundary
        float32, autograd = arithmetic("float32"), torch.enable_grad()
        with float32, crafting(model, rng, passes) as view, torch.inference_mode(False), autograd:
            return _Search(self, view, x.detach(), rows, rng, watch).run()


@dataclass(frozen=True)
class _MicroBatch(Generic[S]):
    """The samples that are attacked at the moment; ``exact`` is x in single precision if x has less."""

    ids: Tensor
    x: Tensor
    exact: Tensor
    rows: Rows
    state: S


class _Search(Generic[S]):
    """One call of an attack: which samples wait for a slot, and the best point found for each."""

    def __init__(
        self, attack: ClosestAttack[S], view: Model, x: Tensor, rows: Rows, rng: Rng, watch: Watch | None
    ) -> None:
        self.attack, self.view, self.x, self.rows = attack, view, x, rows
        self.rng, self.watch = rng.fork("search"), watch
        self.result = x.clone()
        self.shortest = torch.full((len(x),), torch.inf, dtype=_exact(x[:0]).dtype, device=x.device)
        self.highest = -self.shortest
        self.waiting = torch.arange(len(x), device=x.device)
        self.labels_checked = False

    def run(self) -> Tensor:
        """Attack all samples."""
        ids = self._next(microbatch.size())
        batch = self._filled(ids, self._begin(ids))
        while len(batch.ids):
            seen = self._evaluated(batch)
            state, finished = self.attack.move(seen, batch.state)
            finished = finished | (seen.shortest == 0)
            batch = self._refilled(batch.ids, state, finished) if finished.any() else self._moved(batch, state)
        return self.result

    def _evaluated(self, batch: _MicroBatch[S]) -> Seen:
        x, rows = batch.x, batch.rows
        x_adv = batch.state[0].detach()
        if x_adv.dtype != x.dtype:
            x_adv = self.attack.threat.project(x_adv.to(x), x)
        out = self.view.outputs(x_adv.requires_grad_())
        if not self.labels_checked:
            check_outputs(self.rows, out.logits, self.attack.targeted)
            self.labels_checked = True
        loss = self.attack.loss(out, rows)
        grad = gradient(loss, x_adv)
        x_adv.requires_grad_(False)
        if self.watch is not None:
            self.watch(rows, x_adv, loss.detach(), Cost(len(x), len(x)))
        reached = succeeds(out.logits.detach(), rows, self.attack.targeted, self.attack.kappa)
        return self._recorded(batch, x_adv, loss.detach(), grad, reached)

    def _recorded(self, batch: _MicroBatch[S], x_adv: Tensor, loss: Tensor, grad: Tensor, reached: Tensor) -> Seen:
        """Keep the successes that are closer than the earlier ones, and before the first one the largest loss."""
        ids, point, loss = batch.ids, _exact(x_adv), _exact(loss)
        shortest, highest = self.shortest[ids], self.highest[ids]
        distance = self.attack.threat.norm.length(point - batch.exact)
        closer = reached & (distance < shortest)
        better = closer | ((shortest == torch.inf) & (loss > highest))
        self.result[ids] = torch.where(column(better, x_adv), x_adv, self.result[ids])
        self.shortest[ids] = shortest = torch.where(closer, distance, shortest)
        self.highest[ids] = torch.fmax(highest, loss)
        loss, rng = torch.nan_to_num(loss, nan=0.0), self.rng.at(batch.rows.index)  # as in gradient
        return Seen(batch.exact, point, loss, _exact(grad), reached, distance, shortest, rng)

    def _next(self, count: int) -> Tensor:
        ids, self.waiting = self.waiting[:count], self.waiting[count:]
        return ids

    def _begin(self, ids: Tensor) -> S:
        return self.attack.begin(_exact(self.x[ids]))

    def _filled(self, ids: Tensor, state: S) -> _MicroBatch[S]:
        x = self.x[ids]
        return _MicroBatch(ids, x, _exact(x), self.rows.take(ids), state)

    def _moved(self, batch: _MicroBatch[S], state: S) -> _MicroBatch[S]:
        return _MicroBatch(batch.ids, batch.x, batch.exact, batch.rows, state)

    def _refilled(self, ids: Tensor, state: S, finished: Tensor) -> _MicroBatch[S]:
        """The samples that are not finished, and those from the queue that take the free slots."""
        stays, new = ~finished, self._next(int(finished.sum()))
        parts = [part[stays] for part in state]
        if len(new):
            parts = [torch.cat(pair) for pair in zip(parts, self._begin(new), strict=True)]
        return self._filled(torch.cat([ids[stays], new]), cast(S, cast(Any, state)._make(parts)))


def _exact(values: Tensor) -> Tensor:
    """Cast half precision to float32; other types are returned as they are."""
    return values.float() if values.itemsize < 4 else values


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (b,) values so that they broadcast over the rows of ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def difference(out: Outputs, rows: Rows, targeted: bool) -> Tensor:
    """The logit difference (Carlini and Wagner 2017), positive where the attack succeeds.

    Targeted, it is the logit of the target minus the largest other one, not minus the true one.
    """
    if not targeted:
        return logit_difference(out, rows)
    return -logit_difference(out, Rows(rows["target"], rows.index))


def succeeds(logits: Tensor, rows: Rows, targeted: bool, kappa: float = 0.0) -> Tensor:
    """(b,) whether the attack succeeds, by at least ``kappa`` and by more than the rounding of the logits."""
    margin = difference(Outputs(logits, logits, logits), rows, targeted)
    rounding = _ROUNDING * torch.finfo(logits.dtype).eps * logits.abs().amax(1)
    return rows.reached(logits.argmax(1), targeted) & (margin >= rounding.clamp_min(kappa))


def annealed(first: float, last: float, t: Tensor, steps: int, like: Tensor) -> Tensor:
    """From ``first`` at t = 0 to ``last`` at t = steps along a cosine, (b,)."""
    return last + (first - last) * (1 + torch.cos(pi * t.to(like.dtype) / steps)) / 2


def direction(seen: Seen, t: Tensor) -> Tensor:
    """The gradient scaled to Euclidean length one, or a random direction where the gradient is zero."""
    grad = seen.grad
    largest = grad.flatten(1).abs().amax(1) if grad.numel() else grad.new_zeros(len(grad))
    if (largest == 0).any():
        grad = torch.where(column(largest == 0, grad), seen.rng.at(t).normal(grad), grad)
        largest = grad.flatten(1).abs().amax(1)
    grad = grad / column(largest, grad)  # the squares of very small gradients would underflow
    return grad / column(torch.linalg.vector_norm(grad.flatten(1), dim=1), grad)


def check_range(settings: Iterable[tuple[str, float]], below: float = torch.inf) -> None:
    """Refuse settings that are not between zero and ``below``, both excluded."""
    for name, value in settings:
        if not 0 < value < below:
            allowed = "finite and above 0" if below == torch.inf else f"between 0 and {below:g}"
            raise ValueError(f"{name} is {value} but it must be {allowed}; leave it out for the published value")
