"""Threat models: a ball in a norm around each input, and the box that inputs lie in."""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from holdfast.contracts import Norm
from holdfast.norms import L0 as L0
from holdfast.norms import L1 as L1
from holdfast.norms import L2 as L2
from holdfast.norms import NORMS as NORMS
from holdfast.norms import LInf as LInf
from holdfast.norms import flat, to_double
from holdfast.rng import Rng
from holdfast.settings import check_tensors, is_number

_HALF = (torch.float16, torch.bfloat16)
TINY = 1e-20  # added inside square roots, as in the TLA code: zero features have cosine 0 and a finite gradient


def _raise_half(values: Tensor) -> Tensor:
    """Cast half precision to float64 (float32 on MPS); other types are returned as they are."""
    return to_double(values.float()) if values.dtype in _HALF else values


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
            raise ValueError(f"norm is {self.norm!r} but must be one of LInf(), L2(), L1(), L0(), with the parentheses")
        for name in ("eps", "low", "high"):
            if not is_number(given := getattr(self, name)):
                raise ValueError(f"{name} is {given!r} but must be a number, e.g. {'8/255' if name == 'eps' else '0'}")
            object.__setattr__(self, name, given if type(given) in (int, float) else float(given))  # numpy's numbers
        if not self.eps >= 0:
            raise ValueError(f"eps is {self.eps} but a radius must be zero or more; give it in input units, e.g. 8/255")
        if not self.low < self.high:
            raise ValueError(f"the box [{self.low}, {self.high}] is empty; low must be below high")

    def __str__(self) -> str:
        return f"{self.norm.name} eps {self.eps:.6g}"

    @property
    def text(self) -> str:
        """The threat in words, e.g. ``linf eps 8/255``; ``str`` has the decimals of eps."""
        return f"{self.norm.name} eps {eps_text(self.eps)}"

    @property
    def short(self) -> str:
        """The threat as the command line takes it, e.g. ``linf:8/255``, or ``l2:1.5:-1:1`` with the box."""
        box = "" if (self.low, self.high) == (0, 1) else f":{self.low:g}:{self.high:g}"
        return f"{self.norm.name}:{eps_text(self.eps)}{box}"

    def project(self, x_adv: Tensor, x: Tensor, radius: Tensor | None = None) -> Tensor:
        """Return the point nearest to x_adv in the ball around x and in the box; ``radius`` (b,) replaces eps."""
        _check_points(x_adv, x)
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
        _check_points(x_adv, x)
        x_adv, x = _raise_half(x_adv), _raise_half(x)
        points = flat(x_adv)
        in_box = ((points >= self.low) & (points <= self.high) & points.isfinite()).all(1)
        return in_box & (self.norm.length(to_double(x_adv) - to_double(x)) <= self.eps * (1 + 1e-5) + 1e-7)

    def check(self, x: Tensor) -> None:
        """Raise ValueError if x is not floating point, holds NaN or infinite values, or leaves the box."""
        check_tensors(x=x)
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


def _check_points(x_adv: Tensor, x: Tensor) -> None:
    check_tensors(x_adv=x_adv, x=x)
    if x_adv.shape != x.shape:
        raise ValueError(
            f"x_adv has shape {tuple(x_adv.shape)} but x has {tuple(x.shape)}; give one point for each input"
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
