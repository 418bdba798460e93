"""Norms of perturbations.

A norm measures the ``length`` of perturbations and computes the Euclidean projection (``project``) onto ball ∩ box, the
``steepest`` ascent direction of a gradient, and a random ``sample`` of the ball. Only this module depends on the norm.
Perturbations are (b, ...) tensors, lengths are (b,).
"""

from dataclasses import dataclass
from math import frexp

import torch
from torch import Tensor

from holdfast.contracts import Norm
from holdfast.rng import Rng
from holdfast.settings import check_types


def flat(d: Tensor) -> Tensor:
    """Reshape to (b, coordinates)."""
    return d.flatten(1) if d.ndim > 1 else d[:, None]


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (b,) values so that they broadcast over the rows of ``like``."""
    return values.to(like).reshape(-1, *[1] * (like.ndim - 1))


def _pixels(d: Tensor) -> Tensor:
    """Reshape to (b, channels, pixels). In inputs that are not images every number is a pixel."""
    return d.flatten(2) if d.ndim == 4 else flat(d)[:, None]


def to_double(values: Tensor) -> Tensor:
    """Cast to float64, except on MPS, which has none: there the values keep their type."""
    return values if values.device.type == "mps" else values.double()


@dataclass(frozen=True)
class LInf:
    """The maximum norm: the largest absolute change of any coordinate."""

    name = "linf"

    def length(self, d: Tensor) -> Tensor:
        return flat(d).abs().amax(1) if d.numel() else d.new_zeros(len(d))

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
        lengths: Tensor = torch.linalg.vector_norm(to_double(flat(d)), dim=1)
        return lengths.to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box: clip(t·d) with the largest feasible t <= 1.

        Coordinates clipped by the box leave more of the radius to the others, so t only grows: solve for t, mark the
        clipped coordinates and repeat until there are no new ones. Every intermediate t is feasible.
        """
        v, lo, hi = flat(d), flat(low.expand_as(d)), flat(high.expand_as(d))
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
        peak = _column(flat(grad).abs().amax(1), grad) if grad.numel() else grad
        g = torch.where(peak > 0, grad / peak, 0.0)  # the squares of very small gradients would underflow
        return g / _column(torch.linalg.vector_norm(flat(g), dim=1).clamp_min(torch.finfo(g.dtype).tiny), g)

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

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share} but it is a share of the coordinates in (0, 1]")

    def length(self, d: Tensor) -> Tensor:
        return to_double(flat(d).abs()).sum(1).to(d.dtype)

    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Project onto ball ∩ box: shrink every |d| by one threshold, then clip.

        The remaining length is a decreasing piecewise linear function of the threshold: sort its breakpoints, find the
        piece that crosses the radius and solve it exactly.
        """
        v, lo, hi = flat(d), flat(low.expand_as(d)), flat(high.expand_as(d))
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
        g = flat(grad)
        if not g.numel():
            return grad
        k = max(1, round(self.share * g.shape[1]))
        top = g.abs().topk(k, dim=1).indices
        return torch.zeros_like(g).scatter_(1, top, g.gather(1, top).sign() / k).reshape(grad.shape)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Sample uniformly from the ball: exponential variables over the sum of them and one more, random signs."""
        magnitude = -flat(rng.fork("magnitude").uniform(like)).log()
        extra = -rng.fork("extra").uniform(like.new_empty(len(like), 1)).log()
        sign = (flat(rng.fork("sign").uniform(like)) - 0.5).sign()
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
        peak = _column(flat(grad).abs().amax(1), grad) if grad.numel() else grad
        return torch.where(peak > 0, grad / peak, 0.0)

    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor:
        """Sample uniform changes in [-1, 1] on ``radius`` random pixels."""
        d = _pixels(2 * rng.fork("value").uniform(like) - 1)
        rank = _pixels(rng.fork("pixel").uniform(like))[:, 0].argsort(dim=1).argsort(dim=1)
        chosen = rank < radius.to(rank.device)[:, None].floor()
        return torch.where(chosen[:, None], d, 0.0).reshape(like.shape)


NORMS: dict[str, Norm] = {norm.name: norm for norm in (LInf(), L2(), L1(), L0())}
"""Norms by name, as recipes and records spell them."""
