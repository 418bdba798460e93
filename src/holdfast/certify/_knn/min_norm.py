"""Minimum-norm vectors under linear constraints, for a batch of problems, with a proved lower bound at every step.

Each problem is min ‖d‖²/2 subject to a·d >= c for all its constraints (a, c). There may be thousands; an oracle returns
the one that a given d violates most. The dual active-set method of Goldfarb and Idnani (1983) starts at d = 0 and adds
one violated constraint at a time, dropping constraints whose multiplier reaches zero. The multipliers v are never
negative, so the dual value ``c·v - ‖aᵀv‖²/2`` is a lower bound at every step, whatever the rounding errors of the step,
and a problem can stop as soon as its bound is large enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MostViolated = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(problems, d) -> the most violated constraint of each: unit normals a, right-hand sides c and violations c - a·d."""

_DEPENDENT = 1e-11  # squared length outside the span of the active normals below which a unit normal counts as inside
_SLOTS = 8  # active constraints that memory is reserved for at first


@dataclass(frozen=True)
class MinNorm:
    """Per problem: d, a proved lower bound on the length of every feasible vector, and whether d is the solution."""

    d: Tensor
    bound: Tensor
    solved: Tensor


class _Batch:
    """The unfinished problems: active constraints (a, c), their multipliers v and the inverse of their Gram matrix."""

    def __init__(self, like: Tensor, problems: int, width: int) -> None:
        self.problem = torch.arange(problems, device=like.device)
        self.a = like.new_zeros(problems, _SLOTS, width)
        self.c = like.new_zeros(problems, _SLOTS)
        self.v = like.new_zeros(problems, _SLOTS)
        self.active = torch.zeros(problems, _SLOTS, dtype=torch.bool, device=like.device)
        self.inverse = like.new_zeros(problems, _SLOTS, _SLOTS)
        # the violated constraint that is being added
        self.next_a = like.new_zeros(problems, width)
        self.next_c = like.new_zeros(problems)
        self.next_v = like.new_zeros(problems)
        self.needs_constraint = torch.ones(problems, dtype=torch.bool, device=like.device)

    def keep(self, rows: Tensor) -> None:
        """Drop the finished problems."""
        for name, value in vars(self).items():
            setattr(self, name, value[rows])

    def d(self) -> Tensor:
        """Return the primal vectors, d = aᵀv."""
        return torch.baddbmm(self.next_a.mul(self.next_v[:, None])[:, None], self.v[:, None], self.a)[:, 0]

    def dual(self, d: Tensor) -> Tensor:
        """Return the dual values."""
        return (self.c * self.v).sum(1) + self.next_c * self.next_v - d.square().sum(1) / 2

    def double_slots(self) -> None:
        """Reserve memory for twice as many active constraints."""
        n, slots, width = self.a.shape
        self.a = torch.cat([self.a, self.a.new_zeros(n, slots, width)], 1)
        self.c, self.v = (torch.cat([each, torch.zeros_like(each)], 1) for each in (self.c, self.v))
        self.active = torch.cat([self.active, torch.zeros_like(self.active)], 1)
        self.inverse = torch.nn.functional.pad(self.inverse, (0, slots, 0, slots))


def min_norm(most_violated: MostViolated, enough: Tensor, width: int, *, tolerance: float, steps: int) -> MinNorm:
    """Solve one problem for each entry of ``enough``, in ``width`` dimensions.

    A problem is left unsolved, with the lower bound proved so far, when that bound reaches its entry of ``enough``,
    after ``steps`` steps, or if it seems infeasible: with rounding errors, infeasible problems cannot be distinguished
    from those whose constraints are nearly opposite and meet far away. ``tolerance`` is the accepted violation.
    """
    found = MinNorm(enough.new_zeros(len(enough), width), torch.zeros_like(enough), torch.zeros_like(enough).bool())
    batch = _Batch(enough, len(enough), width)
    for _ in range(steps):
        d = batch.d()
        bound = (2 * batch.dual(d)).clamp_min(0).sqrt()
        solved = _next_constraint(batch, d, most_violated, tolerance)
        done = solved | (bound >= enough[batch.problem])
        blocked = _advance(batch, d, done)
        found.bound[batch.problem] = torch.maximum(found.bound[batch.problem], bound)
        found.d[batch.problem], found.solved[batch.problem] = d, solved
        done |= blocked
        if done.all():
            break
        if done.any():
            batch.keep(~done)
    return found


def _next_constraint(batch: _Batch, d: Tensor, most_violated: MostViolated, tolerance: float) -> Tensor:
    """Ask the oracle for the next constraint where one is needed; return a mask of the problems that d solves."""
    solved = torch.zeros_like(batch.needs_constraint)
    rows = batch.needs_constraint.nonzero()[:, 0]
    if len(rows):
        a, c, violation = most_violated(batch.problem[rows], d[rows])
        solved[rows] = violation <= tolerance
        batch.next_a[rows], batch.next_c[rows] = a, c
        batch.next_v[rows] = 0
    return solved


def _advance(batch: _Batch, d: Tensor, done: Tensor) -> Tensor:
    """Step towards the next constraint until it is active or a multiplier is zero; True where neither ever happens."""
    r, z = _project_out(batch, batch.next_a)
    correction, z = _project_out(batch, z)  # again: the inverse has accumulated the rounding errors of its updates
    r = r + correction
    outside = z.square().sum(1).masked_fill(batch.active.sum(1) >= z.shape[1], 0)  # the active normals span the space
    gap = batch.next_c - (batch.next_a * d).sum(1)
    full_step = torch.where(outside > _DEPENDENT, gap.clamp_min(0) / outside, torch.inf)
    ratios = torch.where(batch.active & (r > 0), batch.v / r, torch.inf)
    partial_step, dropped = ratios.min(1)
    step = torch.minimum(full_step, partial_step)
    blocked = step.isinf()
    step = torch.where(blocked | done, 0.0, step)
    batch.v = (batch.v - step[:, None] * r).clamp_min(0)
    batch.next_v = batch.next_v + step
    adds = ~blocked & ~done & (full_step <= partial_step)
    _add(batch, adds.nonzero()[:, 0], r, outside)
    drops = ~blocked & ~done & (full_step > partial_step)
    _drop(batch, drops.nonzero()[:, 0], dropped)
    batch.needs_constraint = adds
    return blocked


def _project_out(batch: _Batch, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coefficients of a in the active normals and its component orthogonal to them."""
    g = torch.bmm(batch.a, a[:, :, None])
    r = torch.bmm(batch.inverse, g)[:, :, 0]
    return r, a - torch.bmm(r[:, None], batch.a)[:, 0]


def _add(batch: _Batch, rows: Tensor, r: Tensor, outside: Tensor) -> None:
    """Make the next constraint of these problems active and update the inverse Gram matrix."""
    if not len(rows):
        return
    if bool(batch.active[rows].all(1).any()):
        batch.double_slots()
        r = torch.nn.functional.pad(r, (0, r.shape[1]))
    slot = batch.active[rows].to(torch.uint8).argmin(1)
    e = r[rows].index_put((torch.arange(len(rows), device=slot.device), slot), -torch.ones_like(outside[rows]))
    batch.inverse[rows] = torch.baddbmm(batch.inverse[rows], e[:, :, None], (e / outside[rows, None])[:, None])
    batch.a[rows, slot] = batch.next_a[rows]
    batch.c[rows, slot] = batch.next_c[rows]
    batch.v[rows, slot] = batch.next_v[rows]
    batch.active[rows, slot] = True
    batch.next_v[rows] = 0


def _drop(batch: _Batch, rows: Tensor, dropped: Tensor) -> None:
    """Drop one active constraint of these problems and update the inverse Gram matrix."""
    if not len(rows):
        return
    slot = dropped[rows]
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
    batch.active[rows, slot] = False
