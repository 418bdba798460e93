"""The inputs that a certificate speaks of: a ball around each sample, inside the box of valid inputs."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.certify._bounds.interval import Interval

_ROUNDS = 3  # of the search for the scale at which a clipped step is as long as the radius
_UNIT = 2.0**-53
_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Region:
    """All points of the box within ``radius`` (b,) of x (b, ...), in the norm ``linf`` or ``l2``."""

    x: Tensor
    radius: Tensor
    norm: str
    box: tuple[float, float]

    def take(self, which: Tensor | slice) -> "Region":
        """Select samples."""
        return Region(self.x[which], self.radius[which], self.norm, self.box)

    @property
    def interval(self) -> Interval:
        """The bounds of every coordinate."""
        r = self.radius.reshape(-1, *[1] * (self.x.ndim - 1))
        return Interval((self.x - r).clamp(*self.box), (self.x + r).clamp(*self.box))

    def lower(self, a: "Signed") -> Tensor:
        """The minimum of a·x over the region, (b, k), rounded downwards."""
        x, (low, high) = self.x.flatten(1), (bound.flatten(1) for bound in self.interval)
        terms = _UNIT * 4 * (x.shape[1] + 8)
        error = terms * (x.abs() + torch.maximum(x - low, high - x))
        least = a.least(low - error, high + error)
        if self.norm == "linf":
            return least
        rows = a.whole.flatten(2)
        step = _ball_minimum(rows, low - x, high - x, self.radius)
        return torch.maximum(least, _inner(rows, x) + step + a.least(-error, error))


class Signed(NamedTuple):
    """Coefficients (1 or b, k, ...), and the parts of them above and below zero."""

    whole: Tensor
    up: Tensor
    down: Tensor

    @staticmethod
    def of(a: Tensor) -> "Signed":
        """The parts of a."""
        return Signed(a, a.clamp_min(0), a.clamp_max(0))

    def least(self, low: Tensor, high: Tensor) -> Tensor:
        """The minimum (b, k) of a·y over low <= y <= high (b, ...)."""
        return _inner(self.up.flatten(2), low.flatten(1)) + _inner(self.down.flatten(2), high.flatten(1))


def _inner(rows: Tensor, x: Tensor) -> Tensor:
    """The products of rows (1 or b, k, n) with x (b, n), (b, k)."""
    return x @ rows[0].T if len(rows) == 1 else (rows @ x[:, :, None]).squeeze(2)


def _ball_minimum(rows: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """A lower bound of rows·d over |d|_2 <= radius and low <= d <= high, nearly always the minimum.

    The minimum is at d = clip(-t·a) with the t at which d is as long as the radius. For every t > 0 the split a = p + q
    with p = -d / t gives the lower bound -radius |p|_2 + q·d, because p·y >= -radius |p|_2 in the ball, and q·y >= q·d
    in the box: q is zero where nothing is clipped, at least zero where d is clipped at the lower bound, and at most
    zero at the upper one. So the search for t need not be exact. The errors of rounding -t·a make q differ from zero by
    u |a|, which ``Region.lower`` covers with those of sums; lengths are rounded here.
    """
    low, high, r = low[:, None], high[:, None], radius[:, None]
    with torch.no_grad():
        t = _scale(rows.float(), low.float(), high.float(), r[:, :, None].float()).double()
    d = (-t * rows).clamp(low, high)
    length: Tensor = torch.linalg.vector_norm(d, dim=2)
    wider = 2 * (rows.shape[2] + 8) * _UNIT
    return (rows * d).sum(2) + length * (length * (1 - wider) - r * (1 + wider)) / t.squeeze(2)


def _scale(rows: Tensor, low: Tensor, high: Tensor, r: Tensor) -> Tensor:
    """The t, nearly, at which clip(-t·a) is as long as the radius."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=2, keepdim=True).clamp_min(_TINY)
    t = (r / length).clamp_min(_TINY)  # too small where coordinates are clipped, which leaves more to the others
    for _ in range(_ROUNDS):
        moved = -t * rows
        d = moved.clamp(low, high)
        free = rows * (d == moved)
        used: Tensor = torch.linalg.vector_norm(d, dim=2, keepdim=True).square()
        rest: Tensor = torch.linalg.vector_norm(free, dim=2, keepdim=True)
        left = (r.square() - used).clamp_min(0) + (t * rest).square()
        t = torch.maximum(t, (left.sqrt() / rest.clamp_min(_TINY)).clamp_max(1e3 * t))
    return t
