"""The one gradient-attack loop: what to climb, where, how, and which iterate to return.

Samples are attacked a micro-batch at a time. A sample that is done (fooled, or out of steps) leaves and the next one
takes its place, so the model always sees full micro-batches, whatever share of the samples falls early. Each sample
carries its own step count, rule memory, restart number and random numbers; its result does not depend on who it
shares a batch with.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from holdfast.attacks._rules import Point, Rule, State
from holdfast.contracts import Attack, Cost, Loss, Model, Outputs, Rows, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.view import confirmed, crafting
from holdfast.geometry import Threat
from holdfast.rng import Rng

Keep = Literal["fooled", "last", "worst", "closest"]
"""Which iterate to return. ``fooled``: the first that fools, at once (evaluation); ``last``: the last one (training);
``worst``: by fooled first, then by loss; ``closest``: the shortest that fools."""

Start = Literal["clean", "random", "near"]
"""Where a try starts: at x, uniformly in the ball, or ``near``: at x + 0.001·N(0, I), as TRADES' code does."""

_NEAR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """The four slots of a gradient attack and its budget."""

    threat: Threat
    loss: Loss
    rule: Rule
    keep: Keep
    start: Start
    steps: int
    restarts: int = 1

    def __post_init__(self) -> None:
        one_of("keep", self.keep, get_args(Keep))
        one_of("start", self.start, get_args(Start))
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(
                f"steps is {self.steps} and restarts {self.restarts} but an attack needs at least one of each"
            )
        if self.restarts > 1 and (self.keep == "last" or self.start == "clean"):
            raise ValueError(
                'restarts need a start other than "clean" and a keep other than "last"; else they repeat or are lost'
            )

    @property
    def looks_at_last(self) -> bool:
        """Whether the last iterate is evaluated too, one forward more: to rank it, or to decide on a restart."""
        return self.keep in ("worst", "closest") or self.restarts > 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None) -> Tensor:
        """Adversarial inputs for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        passes = self.steps * ceil(len(x) / microbatch.size())
        with crafting(model, rng, passes) as view, torch.inference_mode(False), torch.enable_grad():
            board = _Board(self, x.detach(), rows, rng)
            active = board.begin()
            while active is not None:
                active = self._step(view, board, active, watch)
        return board.answer

    def _step(self, view: Model, board: "_Board", active: "_Active", watch: Watch | None) -> "_Active | None":
        here = active.x_adv.requires_grad_()
        out = view.outputs(here)
        board.check_labels(out)
        loss = self.loss(out, active.rows)
        grad = gradient(loss, here)
        here.requires_grad_(False)
        if watch is not None:
            watch(active.rows, here, loss.detach(), Cost(len(here), len(here)))
        moved = self._move(active, grad, loss.detach())
        if self.keep == "last" and moved.left > 0:  # nobody can leave yet: nothing to ask the device
            return moved
        leaves = board.judge(view, active, here, out, loss.detach())
        if not self.looks_at_last:
            leaves = board.retire(moved, leaves)
        return board.replace(moved, leaves) if leaves.any() else moved

    def _move(self, active: "_Active", grad: Tensor, loss: Tensor) -> "_Active":
        point = Point(active.x, active.x_adv, grad, loss, active.t, self.threat)
        x_adv, state = self.rule.move(point, active.state)
        x_adv = _inside(self.threat, x_adv, active.x, active.corners)
        return replace(active, x_adv=x_adv, state=state, t=active.t + 1, left=active.left - 1)


@dataclass(frozen=True)
class _Active:
    """The samples in the micro-batch: their ids in the call, everything that belongs to each, and the number of
    steps that all of them still have at least.
    """

    ids: Tensor
    x: Tensor
    x_adv: Tensor
    corners: tuple[Tensor, ...]
    rows: Rows
    state: State
    t: Tensor
    left: int

    def take(self, which: Tensor) -> "_Active":
        corners, state = (tuple(part[which] for part in parts) for parts in (self.corners, self.state))
        ids, x, x_adv, t = (part[which] for part in (self.ids, self.x, self.x_adv, self.t))
        return _Active(ids, x, x_adv, corners, self.rows.take(which), state, t, self.left)

    def put(self, where: Tensor, other: "_Active") -> "_Active":
        """Others in the places of some; images are overwritten, which costs by the newcomer, not by the batch."""
        whole = zip(
            (self.ids, self.x, self.x_adv, self.t, *self.corners, *self.state),
            (other.ids, other.x, other.x_adv, other.t, *other.corners, *other.state),
            strict=True,
        )
        for old, new in whole:
            old[where] = new
        return replace(self, rows=self.rows.put(where, other.rows), left=min(self.left, other.left))


class _Board:
    """Who waits, who is done, and the best point found for each sample of the call."""

    def __init__(self, plan: Ascent, x: Tensor, rows: Rows, rng: Rng) -> None:
        self.plan, self.x, self.rows, self.rng = plan, x, rows, rng
        self.answer = x.clone()
        self.waiting = torch.arange(len(x), device=x.device)
        self.tries = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self.fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.score = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.labels_checked = False

    def check_labels(self, out: Outputs) -> None:
        if not self.labels_checked:
            check_labels(self.rows.y, out.logits.shape[1])
            self.labels_checked = True

    def judge(self, view: Model, active: _Active, x_adv: Tensor, out: Outputs, loss: Tensor) -> Tensor:
        """Note what the evaluated points are worth; (b,) who is done with this try."""
        keep, ids = self.plan.keep, active.ids
        ended = active.t >= self.plan.steps
        if keep == "last":
            return ended
        fooled = confirmed(view, x_adv, active.rows.y, out.logits.detach().argmax(1) != active.rows.y)
        if keep == "fooled":
            leaves = fooled | ended
            self.answer[ids[leaves]] = x_adv[leaves]
            self._again(ids[ended & ~fooled])
            return leaves
        value = -self.plan.threat.norm.length(x_adv - active.x) if keep == "closest" else loss
        better = (fooled & ~self.fooled[ids]) | ((fooled == self.fooled[ids]) & (value > self.score[ids]))
        self.answer[ids[better]] = x_adv[better]
        self.score[ids[better]] = value[better].to(self.score)
        self.fooled[ids] |= fooled
        self._again(ids[ended])
        return ended

    def retire(self, moved: _Active, leaves: Tensor) -> Tensor:
        """Hand in the last iterate of those out of steps, unseen; (b,) who leaves in all."""
        ended = (moved.t >= self.plan.steps) & ~leaves
        self.answer[moved.ids[ended]] = moved.x_adv[ended]
        return leaves | ended

    def _again(self, ids: Tensor) -> None:
        self.tries[ids] += 1
        self.waiting = torch.cat([self.waiting, ids[self.tries[ids] < self.plan.restarts]])

    def begin(self) -> _Active | None:
        """The first micro-batch; None where there are no samples."""
        ids = self._next(microbatch.size())
        return self._begin(ids) if len(ids) else None

    def replace(self, active: _Active, leaves: Tensor) -> _Active | None:
        """Those who wait in the places of those who leave; None when nobody is left."""
        places = leaves.nonzero().squeeze(1)
        ids = self._next(len(places))
        if len(ids):
            active = active.put(places[: len(ids)], self._begin(ids))
        if len(ids) == len(places):
            return active
        stays = ~leaves
        stays[places[: len(ids)]] = True
        return active.take(stays) if stays.any() else None

    def _next(self, room: int) -> Tensor:
        ids, self.waiting = self.waiting[:room], self.waiting[room:]
        return ids

    def _begin(self, ids: Tensor) -> _Active:
        x, rows, threat = self.x[ids], self.rows.take(ids), self.plan.threat
        corners = threat.corners(x) or ()
        if self.plan.start == "clean":
            x_adv = x.clone()
        else:
            rng = self.rng.fork("start").at(rows.index).at(self.tries[ids])
            x_adv = threat.sample_ball(x, rng) if self.plan.start == "random" else x + _NEAR * rng.normal(x)
            x_adv = _inside(threat, x_adv, x, corners)
        t, state = torch.zeros(len(ids), dtype=torch.int64, device=x.device), self.plan.rule.begin(x_adv)
        return _Active(ids, x, x_adv, corners, rows, state, t, self.plan.steps)


def _inside(threat: Threat, x_adv: Tensor, x: Tensor, corners: tuple[Tensor, ...]) -> Tensor:
    """The nearest point of the threat around x; x_adv is overwritten where that is clipping between known corners."""
    return x_adv.clamp_(*corners) if corners else threat.project(x_adv, x)


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient of the summed loss; where arithmetic broke down (NaN) there is no direction and it is zero."""
    if loss.shape != x.shape[:1]:
        raise ValueError(
            f"the loss has shape {tuple(loss.shape)} for {len(x)} samples but one number per sample is needed"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on the input through autograd, so there is no gradient to follow; "
            "check the model for .detach(), no_grad or a non-differentiable step, or use a gradient-free attack"
        )
    # of the sum, not the mean: a sample's gradient must not depend on the batch size
    (grad,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    return torch.nan_to_num_(grad, nan=0.0)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a misspelt choice, which would otherwise pass as the last one."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r} but it must be one of {', '.join(allowed)}")


def check_distant(name: str, attack: Attack) -> None:
    """Refuse an attack on one model, for use on another, that does not go as far as it may."""
    if getattr(attack, "keep", "last") in ("fooled", "closest"):
        raise ValueError(
            f'{name} needs an attack with keep="last" or "worst"; one that stops at the first success '
            "or keeps the closest stays at the boundary of the source"
        )


def check(x: Tensor, rows: Rows, threat: Threat) -> None:
    """Refuse inputs an attack cannot work with."""
    if len(x) != len(rows):
        raise ValueError(f"x has {len(x)} samples and y {len(rows)}; they must match")
    if rows.y.dtype != torch.int64 or rows.y.ndim != 1:
        raise ValueError(
            f"y has shape {tuple(rows.y.shape)} and type {rows.y.dtype} but class indices (b,) of type int64 are needed"
        )
    for name, value in {"index": rows.index, **rows.given}.items():
        if len(value) != len(rows):
            raise ValueError(f"y has {len(rows)} samples and the rows' {name} {len(value)}; they must match")
    threat.check(x)


def check_labels(y: Tensor, classes: int) -> None:
    """Refuse labels that the model has no logit for."""
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise ValueError(f"labels span {int(y.min())}..{int(y.max())} but the model has classes 0..{classes - 1}")
