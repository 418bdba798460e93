"""Norms and threats: the only place where a norm is spelled out.

A norm has four verbs: ``length`` of perturbations, Euclidean ``project``-ion onto ball ∩ box, the ``steepest``
direction for a gradient, and a random ``sample`` of the ball. Perturbations are (b, ...) tensors, lengths (b,).
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from holdfast.contracts import Norm
from holdfast.rng import Rng

TINY = 1e-20  # inside square roots, as in the TLA code: a zero feature has distance 1 to all and a finite gradient

_HALF = (torch.float16, torch.bfloat16)  # lengths and sums need more digits: these are projected in float32


def _flat(d: Tensor) -> Tensor:
    return d.flatten(1) if d.ndim > 1 else d[:, None]


def _column(values: Tensor, like: Tensor) -> Tensor:
    """(b,) values shaped to broadcast over the rows of ``like``."""
    return values.to(like).reshape(-1, *[1] * (like.ndim - 1))


def _pixels(d: Tensor) -> Tensor:
    """(b, channels, pixels): an image's pixel has all its channels; in other inputs each number is a pixel."""
    return d.flatten(2) if d.ndim == 4 else _flat(d)[:, None]


def to_double(values: Tensor) -> Tensor:
    """The values in float64, in which torch sums without loss; MPS has no float64 and keeps its type."""
    return values if values.device.type == "mps" else values.double()


@dataclass(frozen=True)
class LInf:
    """The largest change of any number: max |d|."""

    name = "linf"

    def length(self, d: Tensor) -> Tensor:
        """(b,) lengths."""
        return _flat(d).abs().amax(1) if d.numel() else d.new_zeros(len(d))

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The nearest point with |d| <= radius and low <= d <= high; here clipping is exact."""
        r = _column(radius, d)
        return d.clamp(torch.maximum(low, -r), torch.minimum(high, r))

    def steepest(self, grad: Tensor) -> Tensor:
        """The unit step that raises a linear function most: the sign."""
        return grad.sign()

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Uniform in the ball."""
        return (2 * rng.uniform(like) - 1) * _column(radius, like)


@dataclass(frozen=True)
class L2:
    """The Euclidean length."""

    name = "l2"

    def length(self, d: Tensor) -> Tensor:
        """(b,) lengths."""
        lengths: Tensor = torch.linalg.vector_norm(to_double(_flat(d)), dim=1)
        return lengths.to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The nearest point in ball ∩ box: clip(t·d) with the largest feasible t <= 1.

        Clipping after scaling would fall short of the ball wherever the box cuts. Numbers stopped by the box free
        length for the others, so t only grows: solve for t, mark who is stopped, repeat until nobody new is. Every
        intermediate t is feasible, and each round but the last stops at least one number more.
        """
        v, lo, hi = _flat(d), _flat(low.expand_as(d)), _flat(high.expand_as(d))
        bound = torch.where(v < 0, lo, hi)
        room = _column(radius, v)
        t = _scale(v, room)
        while True:
            stopped = t * v.abs() >= bound.abs()
            kept = torch.linalg.vector_norm(torch.where(stopped, bound, 0.0), dim=1, keepdim=True)
            left = (room - kept).clamp_min(0).sqrt() * (room + kept).sqrt()
            grown = torch.maximum(t, _scale(torch.where(stopped, 0.0, v), left))
            if not (grown > t).any():
                break
            t = grown
        return torch.where(stopped, bound, t * v).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """The unit step along the gradient; zero where the gradient is."""
        peak = _column(_flat(grad).abs().amax(1), grad) if grad.numel() else grad
        g = torch.where(peak > 0, grad / peak, 0.0)  # tiny gradients must not underflow when squared
        return g / _column(torch.linalg.vector_norm(_flat(g), dim=1).clamp_min(torch.finfo(g.dtype).tiny), g)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Uniform in the ball: a normal direction, a radius distributed as u^(1/d)."""
        direction = self.steepest(rng.fork("direction").normal(like))
        u = rng.fork("radius").uniform(like.new_empty(len(like)))
        return direction * _column(u ** (1 / max(1, like[:1].numel())) * radius.to(like), like)


def _scale(v: Tensor, room: Tensor) -> Tensor:
    """The largest t <= 1 for which t·v fits in the room, (b, 1)."""
    length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return torch.where(length > room, room / length.clamp_min(torch.finfo(v.dtype).tiny), 1.0)


@dataclass(frozen=True)
class L1:
    """The sum of absolute changes.

    One coordinate alone is the steepest direction, but it hits the box at once; like SLIDE (Tramèr and Boneh 2019)
    a step is shared by the ``share`` of coordinates with the largest gradients.
    """

    share: float = 0.01
    name = "l1"

    def length(self, d: Tensor) -> Tensor:
        """(b,) lengths."""
        return to_double(_flat(d).abs()).sum(1).to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The nearest point in ball ∩ box: shrink every |d| by one threshold, then clip.

        The length left is piecewise linear and falling in the threshold; its corners are sorted and the piece that
        crosses the radius is solved exactly.
        """
        v, lo, hi = _flat(d), _flat(low.expand_as(d)), _flat(high.expand_as(d))
        size = v.abs()
        cap = torch.minimum(torch.where(v < 0, -lo, hi).clamp_min(0), size)
        room = _column(radius, v)
        corners, order = torch.cat([size - cap, size], 1).sort(dim=1, descending=True)
        # walking the threshold down, a coordinate starts to count at |v| and stops growing at |v| - cap
        slope = torch.cat([-torch.ones_like(v), torch.ones_like(v)], 1).gather(1, order).cumsum(1)
        gaps = corners[:, :-1] - corners[:, 1:]
        length = torch.cat([torch.zeros_like(room), (slope[:, :-1] * gaps).cumsum(1)], 1)
        piece = (length <= room).sum(1, keepdim=True) - 1
        rest = (room - length.gather(1, piece)) / slope.gather(1, piece).clamp_min(1)
        threshold = (corners.gather(1, piece) - rest).clamp_min(0)
        shrunk = torch.minimum((size - threshold).clamp_min(0), cap)
        # far outside the ball |d| - threshold loses digits, and what it keeps may be longer than the radius
        fit = room / shrunk.sum(1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        return (shrunk * fit.clamp_max(1) * v.sign()).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """A step of unit length on the coordinates with the largest gradients."""
        g = _flat(grad)
        if not g.numel():
            return grad
        k = max(1, round(self.share * g.shape[1]))
        top = g.abs().topk(k, dim=1).indices
        return torch.zeros_like(g).scatter_(1, top, g.gather(1, top).sign() / k).reshape(grad.shape)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Uniform in the ball: exponential magnitudes over their sum and one more, with random signs."""
        magnitude = -_flat(rng.fork("magnitude").uniform(like)).log()
        extra = -rng.fork("extra").uniform(like.new_empty(len(like), 1)).log()
        sign = (_flat(rng.fork("sign").uniform(like)) - 0.5).sign()
        d = sign * magnitude / (magnitude.sum(1, keepdim=True) + extra)
        return d.reshape(like.shape) * _column(radius, like)


@dataclass(frozen=True)
class L0:
    """The number of changed pixels; an image's pixel counts once however many of its channels change."""

    name = "l0"

    def length(self, d: Tensor) -> Tensor:
        """(b,) numbers of changed pixels."""
        return (_pixels(d) != 0).any(1).sum(1).to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The nearest point in ball ∩ box: clip, then keep the pixels whose loss would cost most (Croce, Hein 2019)."""
        v = _pixels(d)
        clipped = _pixels(d.clamp(low, high))
        gain = (v.square() - (v - clipped).square()).sum(1)
        rank = gain.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        kept = rank < radius.to(rank.device)[:, None].floor()
        return torch.where(kept[:, None], clipped, 0.0).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """The gradient scaled to a largest entry of one; the projection then chooses the pixels."""
        peak = _column(_flat(grad).abs().amax(1), grad) if grad.numel() else grad
        return torch.where(peak > 0, grad / peak, 0.0)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Uniform changes in [-1, 1] on ``radius`` random pixels."""
        d = _pixels(2 * rng.fork("value").uniform(like) - 1)
        rank = _pixels(rng.fork("pixel").uniform(like))[:, 0].argsort(dim=1).argsort(dim=1)
        chosen = rank < radius.to(rank.device)[:, None].floor()
        return torch.where(chosen[:, None], d, 0.0).reshape(like.shape)


NORMS: dict[str, Norm] = {norm.name: norm for norm in (LInf(), L2(), L1(), L0())}
"""The norms by the names that recipes and records use."""


@dataclass(frozen=True)
class Threat:
    """What an adversary may do: move x by at most ``eps`` in ``norm`` and stay in the box [low, high].

    ``eps`` may be infinite (minimal-norm attacks) and so may the box (tabular data). A point counts as inside when its
    length is at most ``eps * (1 + 1e-5) + 1e-7``, which covers float32 rounding of x + d and nothing more, and when
    it is in the box exactly.
    """

    norm: Norm
    eps: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.norm, type) or not hasattr(self.norm, "project"):
            raise ValueError(f"norm is {self.norm!r} but must be one of LInf(), L2(), L1(), L0(), with the brackets")
        if not isinstance(self.eps, int | float):
            raise ValueError(f"eps is {self.eps!r} but must be a number, e.g. 8/255")
        if not self.eps >= 0:
            raise ValueError(f"eps is {self.eps} but a radius must be zero or more; give it in input units, e.g. 8/255")
        if not self.low < self.high:
            raise ValueError(f"the box [{self.low}, {self.high}] is empty; low must be below high")

    def __str__(self) -> str:
        return f"{self.norm.name} eps {self.eps:.6g}"

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The point of the threat around x that is nearest to x_adv; where x_adv is NaN in half precision, x."""
        if x.dtype in _HALF:
            wide = torch.where(x_adv.isnan(), x, x_adv).float()
            return _rounded_towards(self.project(wide, x.float()), x)
        if corners := self.corners(x):
            return x_adv.clamp(*corners)
        radius = x.new_full((len(x),), self.eps)
        d = self.norm.project(x_adv - x, radius, self.low - x, self.high - x)
        return self._towards(x + d, x, d.abs())

    def corners(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """The lowest and highest point around x where the threat is a box (linf), so that projecting is clipping."""
        if not isinstance(self.norm, LInf) or x.dtype in _HALF:
            return None
        return self._towards(x - self.eps, x, self.eps), self._towards(x + self.eps, x, self.eps)

    def _towards(self, point: Tensor, x: Tensor, length: Tensor | float) -> Tensor:
        # round towards x: where |x| is large, half a unit in its last place can be more than the tolerance;
        # and x + (high - x) may round past high
        near = point.clamp(self.low, self.high)
        return torch.where((near - x).abs() > length, torch.nextafter(near, x), near)

    def sample(self, x: Tensor, rng: Rng) -> Tensor:
        """A random point of the threat around x: uniform in the ball, then projected."""
        return self.project(self.drawn(x, rng), x)

    def drawn(self, x: Tensor, rng: Rng) -> Tensor:
        """A random point, uniform in the ball around x, that may lie outside the box."""
        if self.eps == torch.inf:
            raise ValueError(
                "eps is infinite, so no point can be drawn from the ball; give a finite eps or no random start"
            )
        if x.dtype in _HALF:
            return self.drawn(x.float(), rng).to(x.dtype)
        return x + self.norm.sample(x, x.new_full((len(x),), self.eps), rng)

    def contains(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """(b,) whether each point is finite, in the box and within eps of x."""
        flat = _flat(x_adv)
        boxed = ((flat >= self.low) & (flat <= self.high) & flat.isfinite()).all(1)
        return boxed & (self.norm.length(to_double(x_adv) - to_double(x)) <= self.eps * (1 + 1e-5) + 1e-7)

    def check(self, x: Tensor) -> None:
        """Refuse inputs that are not numbers or lie outside the box."""
        if not x.is_floating_point():
            raise ValueError(f"x has type {x.dtype} but attacks need floating point; divide images by 255 first")
        if not x.numel():
            return
        least, most = (bound.item() for bound in x.aminmax())  # both are NaN where x holds one
        if not (isfinite(least) and isfinite(most)):
            raise ValueError("x holds NaN or infinite values; clean the data before attacking")
        if least < self.low or most > self.high:
            raise ValueError(
                f"x spans [{least:.3g}, {most:.3g}] but the threat allows [{self.low:g}, {self.high:g}]; "
                "put normalization inside the model and pass raw inputs"
            )


def _rounded_towards(point: Tensor, x: Tensor) -> Tensor:
    """The float32 point in the half precision of x, rounded towards x, so that no coordinate moves farther."""
    near = point.to(x.dtype)
    beyond = to_double(near).sub(to_double(x)).abs() > to_double(point).sub(to_double(x)).abs()
    return torch.where(beyond, torch.nextafter(near, x), near)


def length(features: Tensor) -> Tensor:
    """(b, 1) Euclidean length of each row; just above zero for zero rows, so that these have a gradient."""
    return (features.square().sum(-1, keepdim=True) + features.shape[-1] * TINY).sqrt()


def unit(features: Tensor) -> Tensor:
    """Features scaled to Euclidean length one."""
    return features / length(features)
