"""The shortest d that satisfies many linear constraints, for many problems at once, with a proof at every step.

Each problem is min ‖d‖²/2 subject to a·d >= c for all its constraints (a, c), of which there may be thousands; only an
oracle knows them and names the one that d violates most. The dual method of Goldfarb and Idnani (1983) starts at
d = 0 and adds one violated constraint at a time, dropping those whose multiplier reaches zero. Its multipliers v are
never negative, so at every step ``c·v - ‖aᵀv‖²/2`` proves a lower bound, whatever rounding did to the step itself, and
a problem can stop as soon as its bound is good enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Violated = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(problems, d) -> the most violated constraint of each: unit vectors a, right sides c, and how far d violates it."""

_DEPENDENT = 1e-11  # of a unit vector's squared length: what is left of it outside the span of the others
_FIRST = 8


@dataclass(frozen=True)
class Shortest:
    """Per problem: d, a proved lower bound on the length of a solution, whether d is one."""

    d: Tensor
    bound: Tensor
    solved: Tensor


class _Batch:
    """The problems still open: their constraints in slots, with multipliers and the inverse of the Gram matrix."""

    def __init__(self, like: Tensor, problems: int, width: int) -> None:
        self.which = torch.arange(problems, device=like.device)
        self.a = like.new_zeros(problems, _FIRST, width)
        self.c = like.new_zeros(problems, _FIRST)
        self.v = like.new_zeros(problems, _FIRST)
        self.used = torch.zeros(problems, _FIRST, dtype=torch.bool, device=like.device)
        self.inverse = like.new_zeros(problems, _FIRST, _FIRST)
        # the constraint that is on its way in
        self.next_a = like.new_zeros(problems, width)
        self.next_c = like.new_zeros(problems)
        self.next_v = like.new_zeros(problems)
        self.asks = torch.ones(problems, dtype=torch.bool, device=like.device)

    def keep(self, rows: Tensor) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[rows])

    def d(self) -> Tensor:
        return torch.baddbmm(self.next_a.mul(self.next_v[:, None])[:, None], self.v[:, None], self.a)[:, 0]

    def dual(self, d: Tensor) -> Tensor:
        return (self.c * self.v).sum(1) + self.next_c * self.next_v - d.square().sum(1) / 2

    def widen(self) -> None:
        n, slots, width = self.a.shape
        self.a = torch.cat([self.a, self.a.new_zeros(n, slots, width)], 1)
        self.c, self.v = (torch.cat([each, torch.zeros_like(each)], 1) for each in (self.c, self.v))
        self.used = torch.cat([self.used, torch.zeros_like(self.used)], 1)
        self.inverse = torch.nn.functional.pad(self.inverse, (0, slots, 0, slots))


def shortest(violated: Violated, enough: Tensor, width: int, *, tolerance: float, steps: int) -> Shortest:
    """Solve one problem for each entry of ``enough``; a problem whose bound reaches that entry is left unsolved.

    ``tolerance`` is how far d may lie outside a half-space, in units of d. A problem that takes more than ``steps``
    steps is left unsolved too, with the bound it has; so is one that has no solution, which rounding cannot tell from
    one whose half-spaces nearly face each other and meet far away.
    """
    found = Shortest(enough.new_zeros(len(enough), width), torch.zeros_like(enough), torch.zeros_like(enough).bool())
    batch = _Batch(enough, len(enough), width)
    for _ in range(steps):
        d = batch.d()
        bound = (2 * batch.dual(d)).clamp_min(0).sqrt()
        done, solved = _ask(batch, d, violated, tolerance)
        done |= bound >= enough[batch.which]
        blocked = _advance(batch, d, done)
        found.bound[batch.which] = torch.maximum(found.bound[batch.which], bound)
        found.d[batch.which], found.solved[batch.which] = d, solved
        done |= blocked
        if done.all():
            break
        if done.any():
            batch.keep(~done)
    return found


def _ask(batch: _Batch, d: Tensor, violated: Violated, tolerance: float) -> tuple[Tensor, Tensor]:
    """Let the oracle name the next constraint where one is wanted; (done, solved): where d violates none."""
    solved = torch.zeros_like(batch.asks)
    rows = batch.asks.nonzero()[:, 0]
    if len(rows):
        a, c, by = violated(batch.which[rows], d[rows])
        solved[rows] = by <= tolerance
        batch.next_a[rows], batch.next_c[rows] = a, c
        batch.next_v[rows] = 0
    return solved.clone(), solved


def _advance(batch: _Batch, d: Tensor, done: Tensor) -> Tensor:
    """One step towards the next constraint: as far as it, or until a multiplier is zero. True where there is no end."""
    r, z = _split(batch, batch.next_a)
    again, z = _split(batch, z)  # twice is enough: the inverse has been updated many times, and rounded each time
    r = r + again
    left = z.square().sum(1).masked_fill(batch.used.sum(1) >= z.shape[1], 0)  # there is no direction left
    gap = batch.next_c - (batch.next_a * d).sum(1)
    whole = torch.where(left > _DEPENDENT, gap.clamp_min(0) / left, torch.inf)
    room = torch.where(batch.used & (r > 0), batch.v / r, torch.inf)
    part, out = room.min(1)
    step = torch.minimum(whole, part)
    blocked = step.isinf()
    step = torch.where(blocked | done, 0.0, step)
    batch.v = (batch.v - step[:, None] * r).clamp_min(0)
    batch.next_v = batch.next_v + step
    arrives = ~blocked & ~done & (whole <= part)
    _add(batch, arrives.nonzero()[:, 0], r, left)
    leaves = ~blocked & ~done & (whole > part)
    _drop(batch, leaves.nonzero()[:, 0], out)
    batch.asks = arrives
    return blocked


def _split(batch: _Batch, a: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients r of a in the constraints held, and what is left of it outside their span."""
    g = torch.bmm(batch.a, a[:, :, None])
    r = torch.bmm(batch.inverse, g)[:, :, 0]
    return r, a - torch.bmm(r[:, None], batch.a)[:, 0]


def _add(batch: _Batch, rows: Tensor, r: Tensor, left: Tensor) -> None:
    if not len(rows):
        return
    if bool(batch.used[rows].all(1).any()):
        batch.widen()
        r = torch.nn.functional.pad(r, (0, r.shape[1]))
    slot = batch.used[rows].to(torch.uint8).argmin(1)
    e = r[rows].index_put((torch.arange(len(rows), device=slot.device), slot), -torch.ones_like(left[rows]))
    batch.inverse[rows] = torch.baddbmm(batch.inverse[rows], e[:, :, None], (e / left[rows, None])[:, None])
    batch.a[rows, slot] = batch.next_a[rows]
    batch.c[rows, slot] = batch.next_c[rows]
    batch.v[rows, slot] = batch.next_v[rows]
    batch.used[rows, slot] = True
    batch.next_v[rows] = 0


def _drop(batch: _Batch, rows: Tensor, out: Tensor) -> None:
    if not len(rows):
        return
    slot = out[rows]
    column = batch.inverse[rows, :, slot]
    pivot = column.gather(1, slot[:, None])
    inverse = torch.baddbmm(batch.inverse[rows], column[:, :, None], (column / pivot)[:, None], alpha=-1)
    each = torch.arange(len(rows), device=slot.device)
    inverse[each, :, slot] = 0
    inverse[each, slot, :] = 0
    batch.inverse[rows] = inverse
    batch.a[rows, slot] = 0
    batch.c[rows, slot] = 0
    batch.v[rows, slot] = 0
    batch.used[rows, slot] = False
