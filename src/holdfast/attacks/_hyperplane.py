"""The shortest way to a hyperplane inside a box, in the norms linf, l2 and l1.

Minimal-norm attacks linearize the model and go to the decision boundary of the linear model. Moving coordinate i by u_i
against its weight lowers the linear function by |w_i|·u_i, and the box limits u_i to its ``room``. The shortest u that
lowers the function by ``gap`` is min(t, room_i) for linf and min(t·|w_i|, room_i) for l2, with one number t per sample;
for l1 it uses up the coordinates in the order of their weights.
"""

from math import inf

import torch
from torch import Tensor

DUAL = {"linf": 1.0, "l2": 2.0, "l1": inf}
"""The order of the dual norm: without a box, a gap has the distance gap / dual norm of the weights."""


def shortest_to(point: Tensor, slope: Tensor, value: Tensor, low: float, high: float, norm: str) -> Tensor:
    """Return the shortest d in the norm such that value + slope·d = 0 and low <= point + d <= high.

    ``value``, (b,), is the linear function at ``point``, which lies in the box. If no point of the box is on the
    hyperplane, d leads to the corner that comes nearest to it; where the slope is zero, d is zero.
    """
    w, t = (part.flatten(1).to(torch.promote_types(part.dtype, torch.float32)) for part in (slope, point))
    peak = w.abs().amax(1, keepdim=True)
    w = torch.where(peak > 0, w / peak, 0.0)  # squares of very small and very large weights would under- or overflow
    gap = torch.where(peak > 0, value[:, None].to(w) / peak, 0.0)
    w = torch.where(gap < 0, -w, w)
    size = w.abs()
    room = torch.where(w > 0, t - low, torch.where(w < 0, high - t, 0.0)).clamp_min(0)
    if norm == "l1":
        u = _fill_largest(size, room, gap.abs())
    else:
        u = _fill_evenly(size, room, gap.abs(), pace=size if norm == "l2" else torch.ones_like(size))
    return (-w.sign() * u).to(point.dtype).reshape(point.shape)


def _fill_evenly(size: Tensor, room: Tensor, gap: Tensor, pace: Tensor) -> Tensor:
    """Return u = min(t·pace, room) with the t, (b, 1), for which size·u = gap, or the whole room if that is less.

    size·u is a concave, piecewise linear function of t, so Newton's method from t = 0 grows toward the solution and is
    exact once no further coordinate reaches its room. That takes about five iterations, which cost a third of sorting.
    """
    gain = size * pace
    most = torch.where(room.isinf(), 0.0, size * room)  # coordinates without a limit never use it up
    t = torch.zeros_like(gap)
    while True:
        full = t * pace >= room
        rest = gap - torch.where(full, most, 0.0).sum(1, keepdim=True)
        left = torch.where(full, 0.0, gain).sum(1, keepdim=True)
        grown = torch.where((rest > 0) & (left > 0), rest / left, t).clamp_max(torch.finfo(t.dtype).max)
        if not (grown > t).any():
            break
        t = torch.maximum(t, grown)
    return torch.where(full, room, t * pace)


def _fill_largest(size: Tensor, room: Tensor, gap: Tensor) -> Tensor:
    """Return the u that lowers the function by ``gap`` with the largest weights, each up to its room."""
    ordered, order = size.sort(dim=1, descending=True, stable=True)
    limit = room.gather(1, order)
    used = (ordered * limit).cumsum(1).roll(1, 1)
    used[:, :1] = 0
    taken = torch.where(ordered > 0, ((gap - used) / ordered).clamp_min(0), 0.0)
    return torch.zeros_like(size).scatter_(1, order, torch.minimum(taken, limit))
