"""The step rule of Auto-PGD in linf and l2: step sizes that follow the progress of each sample's loss."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.attacks._rules import Point, State, at_least_float32
from holdfast.geometry import LInf, Threat
from holdfast.rng import Rng

_INCREASES = 0.75  # the share of steps that must increase the loss
_MOMENTUM = 0.75  # the weight of the new step; the rest is the previous move


def far_start(threat: Threat, x: Tensor, rng: Rng) -> Tensor:
    """A random point at distance eps from x in linf or l2, as in the code of AutoAttack, projected onto the box."""
    if isinstance(threat.norm, LInf):
        d = 2 * rng.uniform(x) - 1
        d = d / d.flatten(1).abs().amax(1).reshape(-1, *[1] * (x.ndim - 1))
    else:
        d = threat.norm.steepest(rng.normal(x))
    return threat.project(x + threat.eps * d, x)


class _Progress(NamedTuple):
    """The state of :class:`Adaptive`; everything but points and gradients is (b,)."""

    step: Tensor
    previous: Tensor
    best: Tensor
    best_grad: Tensor
    best_loss: Tensor
    checked_loss: Tensor  # the best loss at the last checkpoint
    last_loss: Tensor
    increases: Tensor  # since the last checkpoint
    halved: Tensor  # at the last checkpoint
    since: Tensor  # steps since the last checkpoint
    window: Tensor  # steps from the last checkpoint to the next


@dataclass(frozen=True)
class Adaptive:
    """Auto-PGD (Croce and Hein 2020) in linf and l2: momentum, and a step size that starts at 2·eps and is halved at
    checkpoints where the loss has not increased often enough or its maximum has not grown.

    The sample then goes on from its best point. Two details are those of the authors' code: the first loss after the
    start is compared with 0 when increases are counted, and the momentum after a restart from the best point is the
    difference to the iterate before it.
    """

    eps: float
    steps: int

    def begin(self, x_adv: Tensor) -> State:
        """The state before the first evaluation."""
        n = len(x_adv)
        number = x_adv.new_zeros(n, dtype=at_least_float32(x_adv))
        count = torch.zeros(n, dtype=torch.int64, device=x_adv.device)
        low = torch.full_like(number, -torch.inf)
        return _Progress(
            step=torch.full_like(number, 2 * self.eps),
            previous=x_adv.clone(),
            best=x_adv.clone(),
            best_grad=torch.zeros_like(x_adv),
            best_loss=low,
            checked_loss=low.clone(),
            last_loss=-low,
            increases=count,
            halved=torch.ones_like(count, dtype=torch.bool),
            since=count - 1,
            window=torch.full_like(count, max(int(0.22 * self.steps), 1)),
        )

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        s = _watched(point, _Progress(*state))
        s, halve = self._checked(s)
        back = point.column(halve)
        x_adv, grad = torch.where(back, s.best, point.x_adv), torch.where(back, s.best_grad, point.grad)
        step = point.column(s.step.to(x_adv))
        moved = point.project(x_adv + step * point.threat.norm.steepest(grad))
        share = point.column(torch.where(point.t == 0, 1.0, _MOMENTUM).to(x_adv))
        moved = point.project(x_adv + (moved - x_adv) * share + (x_adv - s.previous) * (1 - share))
        return moved, s._replace(previous=x_adv)

    def _checked(self, s: _Progress) -> tuple[_Progress, Tensor]:
        """The state after the checkpoint, where there is one, and whether the step size of a sample was halved."""
        due = s.since == s.window
        stuck = ~s.halved & (s.checked_loss >= s.best_loss)
        halve = due & ((s.increases <= _INCREASES * s.window) | stuck)
        least, shorter = max(int(0.06 * self.steps), 1), max(int(0.03 * self.steps), 1)
        checked = s._replace(
            step=torch.where(halve, s.step / 2, s.step),
            checked_loss=torch.where(due, s.best_loss, s.checked_loss),
            increases=torch.where(due, 0, s.increases),
            halved=torch.where(due, halve, s.halved),
            since=torch.where(due, 0, s.since),
            window=torch.where(due, (s.window - shorter).clamp_min(least), s.window),
        )
        return checked, halve


def _watched(point: Point, s: _Progress) -> _Progress:
    """The state with the loss at the present iterate."""
    loss = point.loss.to(s.best_loss)
    better = loss > s.best_loss
    wide = point.column(better)
    return s._replace(
        best=torch.where(wide, point.x_adv, s.best),
        best_grad=torch.where(wide, point.grad, s.best_grad),
        best_loss=torch.where(better, loss, s.best_loss),
        last_loss=torch.where(point.t == 0, 0.0, loss),
        increases=s.increases + (loss > s.last_loss),
        since=s.since + 1,
    )
