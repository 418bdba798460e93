"""The inputs that a certificate speaks of: a ball around each sample, inside the box of valid inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.certify._bounds.interval import Interval

_ROUNDS = 3  # of the search for the scale at which a clipped step is as long as the radius
_UNIT = 2.0**-53


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

    def lower(self, a: Tensor) -> Tensor:
        """The minimum of a·x over the region, (b, k), for coefficients (1 or b, k, ...), rounded downwards."""
        rows, x = a.flatten(2), self.x.flatten(1)
        low, high = (bound.flatten(1) - x for bound in self.interval)
        step = _box_minimum(rows, low, high)
        if self.norm == "l2":
            step = torch.maximum(step, _ball_minimum(rows, low, high, self.radius))
        size = x.abs() + torch.maximum(-low, high)
        error = 4 * (rows.shape[2] + 8) * _UNIT * inner(rows.abs(), size)
        return inner(rows, x) + step - error


def inner(rows: Tensor, x: Tensor) -> Tensor:
    """The products of rows (1 or b, k, n) with x (b, n), (b, k)."""
    return x @ rows[0].T if len(rows) == 1 else (rows @ x[:, :, None]).squeeze(2)


def _box_minimum(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The minimum of rows·d over low <= d <= high."""
    return inner(rows, (low + high) / 2) - inner(rows.abs(), (high - low) / 2)


def _ball_minimum(rows: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """A lower bound of rows·d over |d|_2 <= radius and low <= d <= high, nearly always the minimum.

    The minimum is at d = clip(-t·a) with the t at which d is as long as the radius. For every t > 0 the split
    a = p + q with p = -clip(-t·a) / t gives the lower bound -radius |p|_2 + min over the box of q·d, because p·d >=
    -radius |p|_2. So the search for t need not be exact.
    """
    low, high, r = low[:, None], high[:, None], radius[:, None, None]
    t = _scale(rows.detach(), low, high, r)
    p = -(-t * rows).clamp(low, high) / t.clamp_min(1e-300)
    q = rows - p
    along = torch.minimum(q * low, q * high).sum(2)
    length: Tensor = torch.linalg.vector_norm(p, dim=2) * (1 + 2 * (rows.shape[2] + 8) * _UNIT)
    return along - radius[:, None] * length


def _scale(rows: Tensor, low: Tensor, high: Tensor, r: Tensor) -> Tensor:
    """The t, nearly, at which clip(-t·a) is as long as the radius."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=2, keepdim=True).clamp_min(1e-300)
    t = r / length  # too small where coordinates are clipped, which leaves more of the radius to the others
    for _ in range(_ROUNDS):
        d = (-t * rows).clamp(low, high)
        free = d == -t * rows
        used = torch.where(free, 0.0, d).square().sum(2, keepdim=True)
        rest = torch.where(free, rows, 0.0).square().sum(2, keepdim=True)
        t = torch.maximum(t, ((r.square() - used).clamp_min(0) / rest.clamp_min(1e-300)).sqrt().clamp_max(1e100 * t))
    return t
