"""How each layer and function of torch becomes an operation.

``MODULES`` and ``FUNCTIONS`` name them. Each entry is called with the nodes so far, the layer or function, and its
arguments, in which a :class:`Ref` stands for a value that depends on the input.
"""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.nodes import Nodes, Ref, UnknownError
from holdfast.models.heads import hypersphere, linear

SUPPORTED = (
    "Linear, Conv1d, Conv2d, batch norm, ReLU, LeakyReLU, Softplus, average pooling, MaxPool2d, flattening, zero "
    "padding, Dropout, sums of branches, arithmetic with constants, and a hypersphere head"
)


def _linear(nodes: Nodes, layer: nn.Linear, input: Ref) -> Ref:
    return _linear_function(nodes, None, input, layer.weight, layer.bias)


def _linear_function(nodes: Nodes, _: Any, input: Ref, weight: Tensor, bias: Tensor | None = None) -> Ref:
    return nodes.add(ops.Linear(weight, weight.new_zeros(len(weight)) if bias is None else bias), input)


def _cosines(nodes: Nodes, head: hypersphere.Hypersphere, input: Ref) -> Ref:
    weight = head.directions().detach()
    return nodes.add(ops.Cosines(weight, weight.new_zeros(len(weight))), input)


def _convolution(nodes: Nodes, layer: nn.Conv1d | nn.Conv2d, input: Ref) -> Ref:
    if layer.padding_mode != "zeros":
        raise UnknownError(f"its padding is {layer.padding_mode!r} and not of zeros")
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return _convolve(nodes, None, input, layer.weight, layer.bias, *how)


def _convolve(
    nodes: Nodes,
    _: Any,
    input: Ref,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Ref:
    if isinstance(padding, str) and padding != "valid":
        raise UnknownError("its padding is not a number of pixels")
    sides = weight.ndim - 2
    around = 0 if padding == "valid" else padding
    step, around, apart = (_sides(value, sides) for value in (stride, around, dilation))
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return nodes.add(ops.Convolution(weight, bias, step, around, apart, groups, nodes.shapes[input.index]), input)


def _batch_norm(nodes: Nodes, norm: nn.BatchNorm2d, input: Ref) -> Ref:
    if norm.running_mean is None or norm.running_var is None:
        raise UnknownError("it has no running statistics, so that a sample depends on its batch")
    column = (-1, *[1] * (len(nodes.shapes[input.index]) - 1))
    factor = (norm.running_var + norm.eps).rsqrt()
    factor = factor if norm.weight is None else factor * norm.weight
    bias = torch.zeros_like(factor) if norm.bias is None else norm.bias
    moved = norm.running_mean * factor
    parts = (factor, bias - moved, bias.abs() + moved.abs())
    scale, shift, size = (part.reshape(column).expand(nodes.shapes[input.index]) for part in parts)
    return nodes.add(ops.Scale(scale, shift, size, 10), input)


def _leaky_module(nodes: Nodes, layer: nn.LeakyReLU, input: Ref) -> Ref:
    return nodes.add(ops.LeakyReLU(layer.negative_slope), input)


def _relu(nodes: Nodes, _: Any, input: Ref, inplace: bool = False) -> Ref:
    return nodes.add(ops.LeakyReLU(), input)


def _leaky(nodes: Nodes, _: Any, input: Ref, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    return nodes.add(ops.LeakyReLU(negative_slope), input)


def _softplus_module(nodes: Nodes, layer: nn.Softplus, input: Ref) -> Ref:
    return nodes.add(ops.Softplus(layer.beta, layer.threshold), input)


def _softplus(nodes: Nodes, _: Any, input: Ref, beta: float = 1, threshold: float = 20) -> Ref:
    return nodes.add(ops.Softplus(beta, threshold), input)


def _sides(value: Any, sides: int = 2) -> tuple[int, ...]:
    return (value,) * sides if isinstance(value, int) else tuple(value) * (sides if len(value) == 1 else 1)


def _max_pool_module(nodes: Nodes, layer: nn.MaxPool2d, input: Ref) -> Ref:
    how = layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices
    return _max_pool(nodes, None, input, *how)


def _max_pool(
    nodes: Nodes,
    _: Any,
    input: Ref,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Ref:
    if return_indices or len(nodes.shapes[input.index]) != 3:
        raise UnknownError("it is not the maximum over windows of images")
    stride = kernel_size if stride is None or stride == [] else stride
    out = functional.max_pool2d(nodes.zeros(input), kernel_size, stride, padding, dilation, ceil_mode)
    kernel, step, around, apart = (_sides(value) for value in (kernel_size, stride, padding, dilation))
    shape = nodes.shapes[input.index]
    return nodes.add(ops.MaxPool(kernel, step, around, apart, shape, tuple(out.shape[2:])), input)


def _average_module(nodes: Nodes, layer: nn.Module, input: Ref) -> Ref:
    """Average pooling; as many terms as a window has pixels, or the image if windows adapt to it."""
    shape = nodes.shapes[input.index]
    kernel = getattr(layer, "kernel_size", shape[1:])
    return nodes.linear(input, layer, prod(_sides(kernel, len(shape) - 1)) + 1)


def _average(nodes: Nodes, function: Any, input: Ref, *args: Any, **kwargs: Any) -> Ref:
    terms = prod(nodes.shapes[input.index][1:]) + 1
    return nodes.linear(input, lambda x: function(x, *args, **kwargs), terms)


def _mean(nodes: Nodes, _: Any, input: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    if dim is None:
        raise UnknownError("it mixes samples")
    return nodes.linear(input, lambda x: x.mean(dim, keepdim), prod(nodes.shapes[input.index]) + 1)


def _pad(nodes: Nodes, _: Any, input: Ref, pad: Any, mode: str = "constant", value: float | None = None) -> Ref:
    if mode != "constant" or value:
        raise UnknownError("it pads with other values than zeros")
    return nodes.linear(input, lambda x: functional.pad(x, list(pad)), 0)


def _reshape(nodes: Nodes, target: Any, input: Ref, *args: Any, **kwargs: Any) -> Ref:
    """Any function that returns the numbers of a sample in the same order."""
    x = nodes.zeros(input)
    out = getattr(x, target)(*args, **kwargs) if isinstance(target, str) else target(x, *args, **kwargs)
    shape = tuple(out.shape[1:])
    if len(out) != 2:
        raise UnknownError("it mixes samples")
    return nodes.linear(input, lambda x: x.reshape(len(x), *shape), 0)


def _same(nodes: Nodes, _: Any, input: Ref, *_args: Any, **_kwargs: Any) -> Ref:
    return input


def _dropout(nodes: Nodes, _: Any, input: Ref, p: float = 0.5, training: bool = True, inplace: bool = False) -> Ref:
    if training and p > 0:
        raise UnknownError("it is random in eval mode too")
    return input


def _add(nodes: Nodes, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        return nodes.add(ops.Add(), input, other)
    x, constant = (input, other) if isinstance(input, Ref) else (other, input)
    return nodes.scale(x, 1.0, constant, 1)


def _subtract(nodes: Nodes, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise UnknownError("both depend on the input")
    return nodes.scale(input, 1.0, -other, 1) if isinstance(input, Ref) else nodes.scale(other, -1.0, input, 1)


def _multiply(nodes: Nodes, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise UnknownError("both depend on the input")
    x, constant = (input, other) if isinstance(input, Ref) else (other, input)
    return nodes.scale(x, constant, 0.0, 1)


def _divide(nodes: Nodes, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(other, Ref):
        raise UnknownError("it divides by what depends on the input")
    return nodes.scale(input, 1 / other, 0.0, 2)


def _attribute(nodes: Nodes, _: Any, input: Ref, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise UnknownError
    return getattr(nodes.zeros(input), name)


def _method(nodes: Nodes, name: str, input: Ref, *args: Any) -> Any:
    return getattr(nodes.zeros(input), name)(*args)


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)

MODULES: dict[type[nn.Module], Callable[..., Ref]] = {
    nn.Linear: _linear,
    linear.Linear: _linear,
    hypersphere.Hypersphere: _cosines,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _relu,
    nn.LeakyReLU: _leaky_module,
    nn.Softplus: _softplus_module,
    nn.MaxPool2d: _max_pool_module,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.ZeroPad2d: lambda nodes, layer, input: nodes.linear(input, layer, 0),
    nn.Identity: _same,
    **dict.fromkeys(_DROPOUTS, _same),
    **dict.fromkeys(_AVERAGES, _average_module),
}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), _add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub"), _subtract),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul"), _multiply),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div"), _divide),
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, "relu", "relu_"), _relu),
    **dict.fromkeys((functional.leaky_relu, functional.leaky_relu_), _leaky),
    functional.softplus: _softplus,
    functional.linear: _linear_function,
    **dict.fromkeys((functional.conv1d, functional.conv2d), _convolve),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool),
    **dict.fromkeys((functional.avg_pool2d, functional.adaptive_avg_pool2d), _average),
    **dict.fromkeys((torch.mean, "mean"), _mean),
    functional.pad: _pad,
    functional.dropout: _dropout,
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze), _reshape),
    **dict.fromkeys(("flatten", "reshape", "view", "squeeze"), _reshape),
    "contiguous": _same,
    getattr: _attribute,
    **dict.fromkeys(("size", "dim"), _method),
}
