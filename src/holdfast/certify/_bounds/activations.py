"""Increasing activations and max pooling, with the lines that bound them on an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.certify._bounds.interval import Interval, rounding


class Lines(NamedTuple):
    """Two lines between which an activation lies: low·x + low_shift <= f(x) <= high·x + high_shift."""

    low: Tensor
    low_shift: Tensor
    high: Tensor
    high_shift: Tensor


@dataclass(frozen=True)
class LeakyReLU:
    """max(x, slope · x); ReLU has the slope 0.

    Like every activation it is increasing, ``lines`` bounds it on an interval, and a ``choice`` in [0, 1] decides the
    lower line: here between the two slopes.
    """

    slope: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.slope <= 1:
            raise ValueError(f"a leaky ReLU has the negative slope {self.slope} but bounds need one in [0, 1]")

    def apply(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.slope * x)

    def error(self, size: Tensor) -> Tensor:
        return rounding(2, size)

    def start(self, of: Interval) -> Tensor:
        """Slope 1 or that of the negative side, whichever leaves the smaller area, as in CROWN."""
        return (of.high >= -of.low).to(of.low)

    def lines(self, of: Interval, choice: Tensor) -> Lines:
        low, high = of.low.clamp_max(0), of.high.clamp_min(0)
        width = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
        unsure = (of.low < 0) & (of.high > 0)
        side = torch.where(of.low >= 0, 1.0, self.slope).to(low)  # the slope where the sign is known
        chord = torch.where(unsure, (high - self.slope * low) / width, side)
        below = torch.where(unsure, self.slope + (1 - self.slope) * choice, side)
        shift = torch.where(unsure, (self.slope - chord) * low, 0.0)
        return Lines(below, torch.zeros_like(shift), chord, shift)


@dataclass(frozen=True)
class Softplus:
    """log(1 + exp(beta·x)) / beta, convex: the chord is above it, and the tangent at the chosen point below."""

    beta: float = 1.0
    threshold: float = 20.0  # of beta·x, above which torch returns x

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"a softplus has beta {self.beta} but bounds need an increasing function; use beta > 0")

    def apply(self, x: Tensor) -> Tensor:
        return torch.logaddexp(self.beta * x, torch.zeros_like(x)) / self.beta

    def error(self, size: Tensor) -> Tensor:
        return rounding(16, size + 1 / self.beta) + exp(-self.threshold) / self.beta

    def start(self, of: Interval) -> Tensor:
        return torch.full_like(of.low, 0.5)

    def lines(self, of: Interval, choice: Tensor) -> Lines:
        point = of.low + choice * (of.high - of.low)
        below = torch.sigmoid(self.beta * point)
        low, high = self.apply(of.low), self.apply(of.high)
        width = of.high - of.low
        # a narrow interval has no reliable chord; the constant is above an increasing function too
        chord = torch.where(width > 1e-6, (high - low) / width.clamp_min(1e-6), 0.0)
        shift = torch.where(width > 1e-6, low - chord * of.low, high)
        return Lines(below, self.apply(point) - below * point, chord, shift)


@dataclass(frozen=True, eq=False)
class MaxPool:
    """Two-dimensional max pooling of inputs of shape (channels, height, width)."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    shape: Sequence[int]
    out: Sequence[int]

    def apply(self, x: Tensor) -> Tensor:
        return self._windows(x).amax(-1)

    def lines(self, of: Interval) -> tuple[Tensor, Tensor, Tensor]:
        """The position (b, c, ...) of the input with the largest lower bound, whether none can be larger, and the
        largest upper bound: the output is at least the input at that position, and at most the bound."""
        low, high = self._windows(of.low), self._windows(of.high)
        best, chosen = low.max(-1, keepdim=True)
        others = high.scatter(-1, chosen, -torch.inf).amax(-1)
        position = self._positions(low).expand_as(low).gather(-1, chosen).squeeze(-1)
        return position, others <= best.squeeze(-1), high.amax(-1)

    def pull(self, a: Tensor, position: Tensor) -> Tensor:
        """Add coefficients (b, k, c, ...) of the outputs to the inputs at the positions (b, c, ...)."""
        padded = a.new_zeros(*a.shape[:3], self._padded[0] * self._padded[1])
        where = position.flatten(2)[:, None].expand(*a.shape[:3], -1)
        found = padded.scatter_add(3, where, a.flatten(3)).reshape(*a.shape[:3], *self._padded)
        (top, left), (_, height, width) = self.padding, self.shape
        return found[..., top : top + height, left : left + width]

    @property
    def _padded(self) -> tuple[int, int]:
        """The size of an input with padding, also where ``ceil_mode`` lets windows reach beyond it."""
        sides = zip(self.shape[1:], self.kernel, self.stride, self.padding, self.dilation, self.out, strict=True)
        high, wide = (max(n + p, (o - 1) * s + d * (k - 1) + 1) for n, k, s, p, d, o in sides)
        return high, wide

    def _windows(self, x: Tensor) -> Tensor:
        """The inputs of each output, (b, c, *out, kernel), -inf in the padding."""
        (top, left), (_, height, width), (high, wide) = self.padding, self.shape, self._padded
        padded = functional.pad(x, (left, wide - left - width, top, high - top - height), value=-torch.inf)
        return self._cut(padded)

    def _cut(self, padded: Tensor) -> Tensor:
        parts = []
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                rows = slice(row * self.dilation[0], None, self.stride[0])
                columns = slice(column * self.dilation[1], None, self.stride[1])
                parts.append(padded[..., rows, columns][..., : self.out[0], : self.out[1]])
        return torch.stack(parts, -1)

    def _positions(self, like: Tensor) -> Tensor:
        high, wide = self._padded
        return self._cut(torch.arange(high * wide, device=like.device).reshape(1, 1, high, wide))
