"""The operations of networks that can be bounded: affine ones, increasing activations, max pooling and sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_UNIT = 2.0**-24  # of float32
_WIDER = 1.01  # covers the rounding errors of the bounds themselves, see the overview of the folder
_LEAST = 1e-37  # products below it may underflow


def rounding(terms: float, size: Tensor) -> Tensor:
    """Bound the error of a float32 result with this number of rounding errors, each relative to ``size`` at most."""
    return size * (_WIDER * terms * _UNIT / (1 - terms * _UNIT)) + _LEAST


class Interval(NamedTuple):
    """Lower and upper bounds, (b, ...)."""

    low: Tensor
    high: Tensor

    @property
    def center(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Tensor:
        return (self.high - self.low) / 2

    @property
    def size(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def tightened(self, other: "Interval") -> "Interval":
        """The intersection; where rounding makes it empty, this interval."""
        low, high = torch.maximum(self.low, other.low), torch.minimum(self.high, other.high)
        empty = low > high
        return Interval(torch.where(empty, self.low, low), torch.where(empty, self.high, high))


@dataclass(frozen=True, eq=False)
class Linear:
    """y = W x + b; an output has ``terms`` rounding errors.

    All affine operations have ``pull``, which returns aᵀW for rows a (k, ...) of coefficients of y, ``spread``, which
    returns |W| r for r >= 0, and the constant b, ``shift``, with a bound ``shift_size`` of the parts it is computed of.
    """

    weight: Tensor
    shift: Tensor

    @property
    def terms(self) -> float:
        return self.weight.shape[1] + 1

    @property
    def shift_size(self) -> Tensor:
        return self.shift.abs()

    def apply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.shift)

    def pull(self, a: Tensor) -> Tensor:
        return a @ self.weight

    def spread(self, r: Tensor) -> Tensor:
        return functional.linear(r, self.weight.abs())


@dataclass(frozen=True, eq=False)
class Cosines(Linear):
    """A hypersphere head without its scale and without the length of the features.

    Both multiply all logits by the same positive number, so that the largest stays the largest: the head is a linear
    layer of the directions of its classes. In float32 the directions are computed, too, and products are rounded again.
    """

    @property
    def terms(self) -> float:
        return 1.5 * self.weight.shape[1] + 16


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution with zero padding; ``shape`` is the shape of an input without the batch axis."""

    weight: Tensor
    bias: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    shape: Sequence[int]

    @property
    def terms(self) -> float:
        return self.weight[0].numel() + 1

    @property
    def shift(self) -> Tensor:
        return self.bias.reshape(-1, *[1] * (len(self.shape) - 1))

    @property
    def shift_size(self) -> Tensor:
        return self.shift.abs()

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = functional.conv1d if len(self.shape) == 2 else functional.conv2d
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[arg-type]

    def apply(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight, self.bias)

    def pull(self, a: Tensor) -> Tensor:
        back = torch.nn.grad.conv1d_input if len(self.shape) == 2 else torch.nn.grad.conv2d_input
        size = (len(a), *self.shape)
        return back(size, self.weight, a, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[arg-type, no-any-return]

    def spread(self, r: Tensor) -> Tensor:
        return self._convolve(r, self.weight.abs(), None)


@dataclass(frozen=True, eq=False)
class Scale:
    """factor · x + shift, elementwise: batch norm in eval mode, and arithmetic with constants."""

    factor: Tensor
    shift: Tensor
    shift_size: Tensor
    terms: float

    def apply(self, x: Tensor) -> Tensor:
        return self.factor * x + self.shift

    def pull(self, a: Tensor) -> Tensor:
        return self.factor * a

    def spread(self, r: Tensor) -> Tensor:
        return self.factor.abs() * r


@dataclass(frozen=True, eq=False)
class Average:
    """A linear function with coefficients of zero or more, such as average pooling, padding and reshaping."""

    function: Callable[[Tensor], Tensor]
    shape: Sequence[int]
    terms: float
    shift: Tensor

    @property
    def shift_size(self) -> Tensor:
        return self.shift

    def apply(self, x: Tensor) -> Tensor:
        return self.function(x)

    def pull(self, a: Tensor) -> Tensor:
        with torch.enable_grad():
            x = a.new_zeros(len(a), *self.shape, requires_grad=True)
            # through a, so that slopes which are optimized get gradients
            (pulled,) = torch.autograd.grad(self.function(x), x, a, create_graph=a.requires_grad)
        return pulled

    def spread(self, r: Tensor) -> Tensor:
        return self.function(r)


class Add:
    """The sum of two inputs."""

    def apply(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


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

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    shape: tuple[int, int, int]
    out: tuple[int, int]

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
        found = padded.scatter_add(3, where, a.flatten(3)).unflatten(3, self._padded)
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


Affine = Linear | Convolution | Scale | Average
Activation = LeakyReLU | Softplus
Operation = Affine | Activation | MaxPool | Add

