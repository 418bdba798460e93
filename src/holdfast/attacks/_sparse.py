"""The step rule of Auto-PGD in l1: sparse steps, first in larger balls."""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.attacks._rules import Point, State, at_least_float32
from holdfast.geometry import Threat
from holdfast.rng import Rng

_SHRINK = 1.5  # divides the step size, and the number of changed coordinates
_SPARSER = 0.95  # the ratio of changed coordinates from which on a point counts as sparser
_SMALLEST = 10.0  # the radius divided by the smallest step size


@dataclass(frozen=True)
class Stage:
    """A part of a run in a ball of ``factor``·eps: it begins at iterate ``first`` and takes ``steps`` steps."""

    first: int
    steps: int
    factor: int

    @property
    def window(self) -> int:
        """Steps from one checkpoint to the next."""
        return max(int(0.04 * self.steps), 1)


def stages(steps: int) -> tuple[Stage, ...]:
    """Balls of 3, 2 and 1 times eps for 30, 30 and 40 percent of the steps; one ball if there are too few steps."""
    part = ceil(0.3 * steps)
    if steps <= 2 * part:
        return (Stage(0, steps, 1),)
    # each stage evaluates its first point: the best point of the stage before, projected onto the smaller ball
    return Stage(0, part, 3), Stage(part + 1, part, 2), Stage(2 * part + 2, steps - 2 * part, 1)


class _Progress(NamedTuple):
    """The state of :class:`Sparse`; everything but points and gradients is (b,)."""

    step: Tensor
    best: Tensor
    best_grad: Tensor
    best_loss: Tensor
    share: Tensor  # of the coordinates that a step changes
    changed: Tensor  # coordinates of the best point at the last checkpoint
    since: Tensor  # steps since the last checkpoint


@dataclass(frozen=True)
class Sparse:
    """Auto-PGD in l1 (Croce and Hein 2021): sign steps on the coordinates with the largest gradients.

    A step changes two thirds as many coordinates as the best point at the last checkpoint. At a checkpoint the step
    size is divided by 1.5, down to a tenth of the radius; where the best point has become sparser it is reset to the
    radius, and the sample goes on from its best point.
    """

    eps: float
    stages: tuple[Stage, ...]

    def start(self, threat: Threat, x: Tensor, rng: Rng) -> Tensor:
        """A Gaussian projected onto the first ball, which makes it sparse."""
        return threat.project(x + rng.normal(x), x, x.new_full((len(x),), self.stages[0].factor * self.eps))

    def begin(self, x_adv: Tensor) -> State:
        """A placeholder: the first evaluation of a stage replaces it."""
        number = x_adv.new_zeros(len(x_adv), dtype=at_least_float32(x_adv))
        step, loss = number, number.clone()
        share, changed = (torch.zeros(len(x_adv), device=x_adv.device) for _ in range(2))
        since = torch.zeros(len(x_adv), dtype=torch.int64, device=x_adv.device)
        return _Progress(step, torch.zeros_like(x_adv), torch.zeros_like(x_adv), loss, share, changed, since)

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        radii = [stage.factor * self.eps for stage in self.stages]
        radius, later = self._by_stage(point.t, radii), self._by_stage(point.t + 1, radii)
        first = point.t == self._by_stage(point.t, [stage.first for stage in self.stages])
        s, back = self._checked(point, _watched(point, _Progress(*state), first, radius), radius)
        back = point.column(back)
        x_adv, grad = torch.where(back, s.best, point.x_adv), torch.where(back, s.best_grad, point.grad)
        moved = x_adv + point.column(s.step.to(x_adv)) * _direction(grad, s.share)
        moved = torch.where(point.column(later < radius), s.best, moved)  # on to the next stage
        return point.threat.project(moved, point.x, later), s

    def _checked(self, point: Point, s: _Progress, radius: Tensor) -> tuple[_Progress, Tensor]:
        """The state after the checkpoint, where there is one, and whether a sample goes back to its best point."""
        due = s.since == self._by_stage(point.t, [stage.window for stage in self.stages])
        changed = _changed(s.best - point.x).to(s.changed)
        sparser = changed / s.changed < _SPARSER
        step = torch.where(sparser, radius, s.step / _SHRINK)
        step = torch.maximum(step, radius / _SMALLEST).to(s.step)
        checked = s._replace(
            step=torch.where(due, step, s.step),
            share=torch.where(due, _share(changed, point.x), s.share),
            changed=torch.where(due, changed, s.changed),
            since=torch.where(due, 0, s.since),
        )
        return checked, due & sparser

    def _by_stage(self, t: Tensor, values: list[float]) -> Tensor:
        """The value of the stage that iterate t belongs to, (b,)."""
        found = torch.full_like(t, values[0], dtype=torch.float32 if t.device.type == "mps" else torch.float64)
        for stage, value in zip(self.stages[1:], values[1:], strict=True):
            found = torch.where(t >= stage.first, value, found)
        return found


def _watched(point: Point, s: _Progress, first: Tensor, radius: Tensor) -> _Progress:
    """The state with the loss at the present iterate; at the ``first`` iterate of a stage it begins anew."""
    loss = point.loss.to(s.best_loss)
    better = first | (loss > s.best_loss)
    wide = point.column(better)
    changed = _changed(point.x_adv - point.x).to(s.changed)
    return s._replace(
        step=torch.where(first, radius.to(s.step), s.step),
        best=torch.where(wide, point.x_adv, s.best),
        best_grad=torch.where(wide, point.grad, s.best_grad),
        best_loss=torch.where(better, loss, s.best_loss),
        share=torch.where(first, _share(changed, point.x), s.share),
        changed=torch.where(first, changed, s.changed),
        since=torch.where(first, 0, s.since + 1),
    )


def _changed(d: Tensor) -> Tensor:
    return (d.flatten(1) != 0).sum(1)


def _share(changed: Tensor, x: Tensor) -> Tensor:
    return changed / max(1, x[:1].numel()) / _SHRINK


def _direction(grad: Tensor, share: Tensor) -> Tensor:
    """A step of unit l1 length in the signs of the ``share`` of coordinates with the largest gradients."""
    g = grad.flatten(1)
    size, n = g.abs(), g.shape[1]
    rank = ((1 - share) * n).clamp(0, n - 1).long()
    least = size.sort(dim=1).values.gather(1, rank[:, None])
    sign = torch.where(size >= least, g.sign(), 0.0)
    return (sign / (sign.abs().sum(1, keepdim=True) + 1e-10)).reshape(grad.shape)
