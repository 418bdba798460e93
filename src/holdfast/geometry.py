"""Norms and threat models.

A norm measures the ``length`` of perturbations and computes the Euclidean projection (``project``) onto ball ∩ box, the
``steepest`` ascent direction of a gradient, and a random ``sample`` of the ball. Only this module depends on the norm.
Perturbations are (b, ...) tensors, lengths are (b,).
"""

from dataclasses import dataclass
from math import frexp, isfinite

import torch
from torch import Tensor

from holdfast.contracts import Norm
from holdfast.rng import Rng

_HALF = (torch.float16, torch.bfloat16)
TINY = 1e-20  # added inside square roots, as in the TLA code: zero features have cosine 0 and a finite gradient


def _flat(d: Tensor) -> Tensor:
    return d.flatten(1) if d.ndim > 1 else d[:, None]


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (b,) values so that they broadcast over the rows of ``like``."""
    return values.to(like).reshape(-1, *[1] * (like.ndim - 1))


def _pixels(d: Tensor) -> Tensor:
    """Reshape to (b, channels, pixels). In inputs that are not images every number is a pixel."""
    return d.flatten(2) if d.ndim == 4 else _flat(d)[:, None]


def to_double(values: Tensor) -> Tensor:
    """Cast to float64, except on MPS, which has none: there the values keep their type."""
    return values if values.device.type == "mps" else values.double()


def _raise_half(values: Tensor) -> Tensor:
    """Cast half precision to float64 (float32 on MPS); other types are returned as they are."""
    return to_double(values.float()) if values.dtype in _HALF else values


@dataclass(frozen=True)
class LInf:
    """The maximum norm: the largest absolute change of any coordinate."""

    name = "linf"

    def length(self, d: Tensor) -> Tensor:
        return _flat(d).abs().amax(1) if d.numel() else d.new_zeros(len(d))

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box, |d| <= radius and low <= d <= high; for this norm, clipping is exact."""
        r = _column(radius, d)
        return d.clamp(torch.maximum(low, -r), torch.minimum(high, r))

    def steepest(self, grad: Tensor) -> Tensor:
        """Return the unit step that increases a linear function most: the sign of its gradient."""
        return grad.sign()

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        return (2 * rng.uniform(like) - 1) * _column(radius, like)


@dataclass(frozen=True)
class L2:
    """The Euclidean norm."""

    name = "l2"

    def length(self, d: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(to_double(_flat(d)), dim=1)
        return lengths.to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box: clip(t·d) with the largest feasible t <= 1.

        Coordinates clipped by the box leave more of the radius to the others, so t only grows: solve for t, mark the
        clipped coordinates and repeat until there are no new ones. Every intermediate t is feasible.
        """
        v, lo, hi = _flat(d), _flat(low.expand_as(d)), _flat(high.expand_as(d))
        bound = torch.where(v < 0, lo, hi)
        r = _column(radius, v)
        shrink = _overflow_scale(v)
        v, most = shrink * v, 1 / shrink
        t = _largest_scale(v, r, most)
        while True:
            clipped = t * v.abs() >= bound.abs()
            used = torch.linalg.vector_norm(torch.where(clipped, bound, 0.0), dim=1, keepdim=True)
            remaining = (r - used).clamp_min(0).sqrt() * (r + used).sqrt()
            grown = torch.maximum(t, _largest_scale(torch.where(clipped, 0.0, v), remaining, most))
            if not (grown > t).any():
                break
            t = grown
        return torch.where(clipped, bound, t * v).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """Return the unit step along the gradient, or zero where the gradient is zero."""
        peak = _column(_flat(grad).abs().amax(1), grad) if grad.numel() else grad
        g = torch.where(peak > 0, grad / peak, 0.0)  # the squares of very small gradients would underflow
        return g / _column(torch.linalg.vector_norm(_flat(g), dim=1).clamp_min(torch.finfo(g.dtype).tiny), g)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Sample uniformly from the ball: a normalized Gaussian direction, a radius distributed as u^(1/d)."""
        direction = self.steepest(rng.fork("direction").normal(like))
        u = rng.fork("radius").uniform(like.new_empty(len(like)))
        return direction * _column(u ** (1 / max(1, like[:1].numel())) * radius.to(like), like)


def _largest_scale(v: Tensor, radius: Tensor, most: Tensor) -> Tensor:
    """Return the largest t <= most, (b, 1), such that t·v is no longer than the radius."""
    length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return torch.where(most * length > radius, radius / length.clamp_min(torch.finfo(v.dtype).tiny), most)


def _overflow_scale(v: Tensor) -> Tensor:
    """Return 1, or a small power of two where the squares of a row overflow, (b, 1)."""
    length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    exponent = frexp(torch.finfo(v.dtype).max)[1]
    return torch.where(length.isinf(), 2.0 ** (-3 * exponent // 4), torch.ones_like(length))


@dataclass(frozen=True)
class L1:
    """The sum of absolute changes.

    The exact steepest direction is a single coordinate, which reaches the edge of the box after one step. As in SLIDE
    (Tramèr and Boneh 2019), a step is therefore spread over the ``share`` of coordinates with the largest gradients.
    """

    share: float = 0.01
    name = "l1"

    def length(self, d: Tensor) -> Tensor:
        return to_double(_flat(d).abs()).sum(1).to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box: shrink every |d| by one threshold, then clip.

        The remaining length is a decreasing piecewise linear function of the threshold: sort its breakpoints, find the
        piece that crosses the radius and solve it exactly.
        """
        v, lo, hi = _flat(d), _flat(low.expand_as(d)), _flat(high.expand_as(d))
        size = v.abs()
        cap = torch.minimum(torch.where(v < 0, -lo, hi).clamp_min(0), size)
        r = _column(radius, v)
        breakpoints, order = torch.cat([size - cap, size], 1).sort(dim=1, descending=True)
        # as the threshold decreases, a coordinate starts to count at |v| and stops growing at |v| - cap
        slope = torch.cat([-torch.ones_like(v), torch.ones_like(v)], 1).gather(1, order).cumsum(1)
        gaps = breakpoints[:, :-1] - breakpoints[:, 1:]
        length = torch.cat([torch.zeros_like(r), (slope[:, :-1] * gaps).cumsum(1)], 1)
        piece = (length <= r).sum(1, keepdim=True) - 1
        largest = torch.finfo(v.dtype).max  # sums may overflow
        rest = (r - length.gather(1, piece).clamp_max(largest)) / slope.gather(1, piece).clamp_min(1)
        threshold = (breakpoints.gather(1, piece) - rest).clamp_min(0)
        shrunk = torch.minimum((size - threshold).clamp_min(0), cap)
        # far outside the ball, |d| - threshold cancels and the result may be longer than the radius
        fit = r / shrunk.sum(1, keepdim=True).clamp(torch.finfo(v.dtype).tiny, largest)
        return (shrunk * fit.clamp_max(1) * v.sign()).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """Return a step of unit length on the coordinates with the largest gradients."""
        g = _flat(grad)
        if not g.numel():
            return grad
        k = max(1, round(self.share * g.shape[1]))
        top = g.abs().topk(k, dim=1).indices
        return torch.zeros_like(g).scatter_(1, top, g.gather(1, top).sign() / k).reshape(grad.shape)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Sample uniformly from the ball: exponential variables over the sum of them and one more, random signs."""
        magnitude = -_flat(rng.fork("magnitude").uniform(like)).log()
        extra = -rng.fork("extra").uniform(like.new_empty(len(like), 1)).log()
        sign = (_flat(rng.fork("sign").uniform(like)) - 0.5).sign()
        d = sign * magnitude / (magnitude.sum(1, keepdim=True) + extra)
        return d.reshape(like.shape) * _column(radius, like)


@dataclass(frozen=True)
class L0:
    """The number of changed pixels. A pixel of an image counts once, however many of its channels change."""

    name = "l0"

    def length(self, d: Tensor) -> Tensor:
        """Return the (b,) numbers of changed pixels."""
        return (_pixels(d) != 0).any(1).sum(1).to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box: clip, then keep the pixels that reduce the distance most (Croce and Hein 2019)."""
        v = _pixels(d)
        clipped = _pixels(d.clamp(low, high))
        gain = (v.square() - (v - clipped).square()).sum(1)
        rank = gain.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        kept = rank < radius.to(rank.device)[:, None].floor()
        return torch.where(kept[:, None], clipped, 0.0).reshape(d.shape)

    def steepest(self, grad: Tensor) -> Tensor:
        """Return the gradient scaled so that its largest entry is one; the projection then selects the pixels."""
        peak = _column(_flat(grad).abs().amax(1), grad) if grad.numel() else grad
        return torch.where(peak > 0, grad / peak, 0.0)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Sample uniform changes in [-1, 1] on ``radius`` random pixels."""
        d = _pixels(2 * rng.fork("value").uniform(like) - 1)
        rank = _pixels(rng.fork("pixel").uniform(like))[:, 0].argsort(dim=1).argsort(dim=1)
        chosen = rank < radius.to(rank.device)[:, None].floor()
        return torch.where(chosen[:, None], d, 0.0).reshape(like.shape)


NORMS: dict[str, Norm] = {norm.name: norm for norm in (LInf(), L2(), L1(), L0())}
"""Norms by name, as recipes and records spell them."""


@dataclass(frozen=True)
class Threat:
    """A threat model: perturb x by at most ``eps`` in ``norm`` and stay in the box [low, high].

    ``eps`` may be infinite (minimal-norm attacks) and so may the box (tabular data). A point counts as inside if the
    perturbation is no longer than ``eps * (1 + 1e-5) + 1e-7``, a tolerance that covers only the float32 rounding of
    x + d, and if it lies in the box exactly. Half-precision points are computed in float64 and rounded towards x, so
    that they are inside by the same tolerance.
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

    @property
    def short(self) -> str:
        """The threat as the command line takes it, e.g. ``linf:8/255``, or ``l2:1.5:-1:1`` with the box."""
        box = "" if (self.low, self.high) == (0, 1) else f":{self.low:g}:{self.high:g}"
        return f"{self.norm.name}:{eps_text(self.eps)}{box}"

    def project(self, x_adv: Tensor, x: Tensor, radius: Tensor | None = None) -> Tensor:
        """Return the point nearest to x_adv in the ball around x and in the box; ``radius`` (b,) replaces eps."""
        dtype = torch.promote_types(x_adv.dtype, x.dtype)
        if dtype in _HALF:
            x_adv = torch.where(x_adv.isnan(), x, x_adv)  # an overflow has no direction
            largest = torch.finfo(x_adv.dtype).max  # takes the place of infinity, which is an overflow too
            finite = _raise_half(x_adv).clamp(-largest, largest)
            return self._round_half(self.project(finite, _raise_half(x), radius), x)
        x_adv, x = x_adv.to(dtype), x.to(dtype)
        if radius is None and (corners := self.corners(x)):
            return x_adv.clamp(*corners)
        radius = x.new_full((len(x),), self.eps) if radius is None else radius
        d = self.norm.project(x_adv - x, radius, self.low - x, self.high - x)
        return self._round_towards(x + d, x, d.abs())

    def corners(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the lowest and highest point of ball ∩ box for linf, so that projecting is clipping; else None."""
        if not isinstance(self.norm, LInf):
            return None
        exact = _raise_half(x)
        low = self._round_towards(exact - self.eps, exact, self.eps)
        high = self._round_towards(exact + self.eps, exact, self.eps)
        return (self._round_half(low, x), self._round_half(high, x)) if x.dtype in _HALF else (low, high)

    def _round_towards(self, point: Tensor, x: Tensor, length: Tensor | float) -> Tensor:
        # where |x| is large, half a unit in its last place can exceed the tolerance, and x + (high - x) may round
        # past high
        near = point.clamp(self.low, self.high)
        return torch.where((near - x).abs() > length, torch.nextafter(near, x), near)

    def _round_half(self, point: Tensor, x: Tensor) -> Tensor:
        """Round a point to the half-precision type of x, towards x where the nearest number is farther or outside."""
        largest = torch.finfo(x.dtype).max
        near = point.clamp(-largest, largest).to(x.dtype)
        rounded, center = near.to(point), x.to(point)
        farther = (rounded - center).abs() > (point - center).abs()
        return torch.where(farther | (rounded < self.low) | (rounded > self.high), torch.nextafter(near, x), near)

    def sample(self, x: Tensor, rng: Rng) -> Tensor:
        """Sample a point uniformly from the ball around x and project it onto ball ∩ box."""
        return self.project(self.sample_ball(x, rng), x)

    def sample_ball(self, x: Tensor, rng: Rng) -> Tensor:
        """Sample a point uniformly from the ball around x; it may lie outside the box."""
        if self.eps == torch.inf:
            raise ValueError(
                "eps is infinite, so no point can be drawn from the ball; give a finite eps or no random start"
            )
        if x.dtype in _HALF:
            return self._round_half(self.sample_ball(_raise_half(x), rng), x)
        return x + self.norm.sample(x, x.new_full((len(x),), self.eps), rng)

    def contains(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return a (b,) mask: True if the point is finite, in the box and within eps of x."""
        x_adv, x = _raise_half(x_adv), _raise_half(x)
        flat = _flat(x_adv)
        in_box = ((flat >= self.low) & (flat <= self.high) & flat.isfinite()).all(1)
        return in_box & (self.norm.length(to_double(x_adv) - to_double(x)) <= self.eps * (1 + 1e-5) + 1e-7)

    def check(self, x: Tensor) -> None:
        """Raise ValueError if x is not floating point, holds NaN or infinite values, or leaves the box."""
        if not x.is_floating_point():
            raise ValueError(f"x has type {x.dtype} but attacks need floating point; divide images by 255 first")
        if not x.numel():
            return
        least, most = (bound.item() for bound in x.aminmax())  # both are NaN if x holds a NaN
        if not (isfinite(least) and isfinite(most)):
            raise ValueError("x holds NaN or infinite values; clean the data before attacking")
        if least < self.low or most > self.high:
            raise ValueError(
                f"x spans [{least:.3g}, {most:.3g}] but the threat allows [{self.low:g}, {self.high:g}]; "
                "put normalization inside the model and pass raw inputs"
            )


def eps_text(eps: float) -> str:
    """An eps as it is usually written: 8/255 for a whole number of gray levels, else the decimal number."""
    levels = eps * 255
    if len(f"{eps!r}") > 6 and 0 < levels < 256 and abs(levels - round(levels)) < 1e-9:
        return f"{round(levels)}/255"
    return f"{eps:g}"


def length(features: Tensor) -> Tensor:
    """Return the Euclidean length of each row, (b, 1), plus a tiny amount that gives zero rows a finite gradient."""
    return (features.square().sum(-1, keepdim=True) + features.shape[-1] * TINY).sqrt()


def unit(features: Tensor) -> Tensor:
    """Scale features to Euclidean length one."""
    return features / length(features)
