"""Affine operations, and the sum of two branches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv1d_input, conv2d_input

_LONGEST = 1e19  # its square is below the largest float32


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
    layer of the directions of its classes. In float32 the directions are computed, too, and products are rounded again;
    features whose squared length may overflow have no bounds.
    """

    @property
    def terms(self) -> float:
        return 1.5 * self.weight.shape[1] + 16

    def spread(self, r: Tensor) -> Tensor:
        too_long = torch.linalg.vector_norm(r, dim=-1, keepdim=True) > _LONGEST
        return torch.where(too_long, torch.inf, super().spread(r))


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
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def apply(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight, self.bias)

    def pull(self, a: Tensor) -> Tensor:
        back = conv1d_input if len(self.shape) == 2 else conv2d_input
        size = (len(a), *self.shape)
        return back(size, self.weight, a, self.stride, self.padding, self.dilation, self.groups)  # type: ignore[no-any-return, no-untyped-call]

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
