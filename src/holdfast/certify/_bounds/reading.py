"""Reads the operations of a network from its trace."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from holdfast.certify._bounds import operations as ops
from holdfast.models.classifier import PerImage
from holdfast.models.heads import hypersphere, linear

SUPPORTED = (
    "Linear, Conv1d, Conv2d, batch norm, ReLU, LeakyReLU, Softplus, average pooling, MaxPool2d, flattening, zero "
    "padding, Dropout, sums of branches, arithmetic with constants, and a hypersphere head"
)


@dataclass(frozen=True, eq=False)
class Node:
    """An operation, the numbers of the nodes it reads, and the shape of its output without the batch axis."""

    operation: ops.Operation
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Ref:
    """A value that depends on the input of the network: the number of its node."""

    index: int


class Reader:
    """Turns what depends on the input into nodes and computes everything else, such as sizes and constants."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model
        self.like = example.new_zeros(())
        self.nodes: dict[int, Node] = {}
        self.shapes = {0: tuple(example.shape[1:])}
        self._found: dict[fx.Node, Any] = {}

    def read(self, graph: fx.Graph) -> tuple[Mapping[int, Node], int, int | None]:
        """The nodes, and the numbers of the output and of the last linear layer."""
        head = None
        for node in graph.nodes:
            if node.op == "output":
                return self.nodes, self._output(self._resolve(node.args[0])), head
            self._found[node] = value = Ref(0) if node.op == "placeholder" else self._read(node)
            if isinstance(value, Ref) and node.op == "call_module" and isinstance(self._target(node), nn.Linear):
                head = value.index
        raise AssertionError("a graph ends with an output")

    def _output(self, out: Any) -> int:
        if not isinstance(out, Ref) or not out.index or len(self.shapes[out.index]) != 1:
            raise ValueError("bounds need a network that returns logits of shape (b, classes); wrap it so that it does")
        if self.shapes[out.index][0] < 2:
            raise ValueError("the network has 1 output but a classifier has one for each class, two or more")
        for index, node in self.nodes.items():
            if isinstance(node.operation, ops.Cosines) and index != out.index:
                raise ValueError("a hypersphere head can be bounded only as the last layer; put it there")
        return out.index

    def _target(self, node: fx.Node) -> Any:
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else node.target

    def _resolve(self, value: Any) -> Any:
        return fx.node.map_arg(value, lambda node: self._found[node])

    def _read(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.model)
        target, args, kwargs = self._target(node), self._resolve(node.args), dict(self._resolve(node.kwargs))
        if not any(isinstance(value, Ref) for value in (*args, *kwargs.values())):
            return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
        make = (_MODULES.get(type(target)) if node.op == "call_module" else _FUNCTIONS.get(target)) or _refuse
        try:
            return make(self, target, *args, **kwargs)
        except _Unknown as reason:
            raise ValueError(_message(node, self.model, str(reason))) from None
        except TypeError:  # arguments that the function here does not have
            raise ValueError(_message(node, self.model)) from None

    def zeros(self, ref: Ref) -> Tensor:
        """Two inputs of zeros for a node that reads ``ref``."""
        return self.like.new_zeros(2, *self.shapes[ref.index])

    def add(self, operation: ops.Operation, *inputs: Ref) -> Ref:
        """Append a node."""
        index = len(self.nodes) + 1
        out = operation.apply(*map(self.zeros, inputs))
        if len(out) != 2:
            raise _Unknown("it mixes samples")
        self.shapes[index] = tuple(out.shape[1:])
        self.nodes[index] = Node(operation, tuple(ref.index for ref in inputs), self.shapes[index])
        return Ref(index)

    def linear(self, x: Ref, function: Callable[[Tensor], Tensor], terms: float) -> Ref:
        """Append a linear function with coefficients of zero or more."""
        return self.add(ops.Average(function, self.shapes[x.index], terms, self.like), x)

    def scale(self, x: Ref, factor: Any, shift: Any, terms: float) -> Ref:
        """Append factor · x + shift; tensors broadcast to the samples."""
        shape = (1, *self.shapes[x.index])
        parts = [torch.as_tensor(part, dtype=torch.float64, device=self.like.device) for part in (factor, shift)]
        wide = [part.expand(shape)[0] for part in parts]
        return self.add(ops.Scale(*wide, wide[1].abs(), terms), x)


class _Unknown(Exception):
    """Raised for an operation that cannot be bounded; the text says why, if that is not plain."""


def _refuse(*_args: Any, **_kwargs: Any) -> Ref:
    raise _Unknown


def check_known(graph: fx.Graph, model: nn.Module) -> None:
    """Refuse operations that cannot be bounded for any input."""
    for node in graph.nodes:
        if node.op == "call_module" and type(model.get_submodule(str(node.target))) not in _MODULES:
            raise ValueError(_message(node, model))
        if node.op in ("call_function", "call_method") and node.target not in _FUNCTIONS:
            if not str(getattr(node.target, "__module__", "")).endswith("operator"):  # which may be arithmetic of sizes
                raise ValueError(_message(node, model))


def _message(node: fx.Node, model: nn.Module, reason: str = "") -> str:
    inside = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    if PerImage in inside:
        return (
            "bounds cannot handle images that are standardized by their own mean and deviation; train with fixed ones: "
            'normalize = "none" or the mean and std of the data set'
        )
    module = node.op == "call_module"
    name = type(model.get_submodule(str(node.target))).__name__ if module else node.name
    where = f" ({node.target})" if module else f" (in {inside[-1].__name__})" if inside else ""
    return f"bounds cannot handle {name}{where}{': ' if reason else ''}{reason}; supported are {SUPPORTED}"


def _linear(reader: Reader, layer: nn.Linear, input: Ref) -> Ref:
    return _linear_function(reader, None, input, layer.weight, layer.bias)


def _linear_function(reader: Reader, _: Any, input: Ref, weight: Tensor, bias: Tensor | None = None) -> Ref:
    return reader.add(ops.Linear(weight, weight.new_zeros(len(weight)) if bias is None else bias), input)


def _cosines(reader: Reader, head: hypersphere.Hypersphere, input: Ref) -> Ref:
    weight = head.directions().detach()
    return reader.add(ops.Cosines(weight, weight.new_zeros(len(weight))), input)


def _convolution(reader: Reader, layer: nn.Conv1d | nn.Conv2d, input: Ref) -> Ref:
    if layer.padding_mode != "zeros":
        raise _Unknown(f"its padding is {layer.padding_mode!r} and not of zeros")
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return _convolve(reader, None, input, layer.weight, layer.bias, *how)


def _convolve(
    reader: Reader,
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
        raise _Unknown("its padding is not a number of pixels")
    sides = weight.ndim - 2
    how = [_sides(value, sides) for value in (stride, 0 if padding == "valid" else padding, dilation)]
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return reader.add(ops.Convolution(weight, bias, *how, groups, reader.shapes[input.index]), input)


def _batch_norm(reader: Reader, norm: nn.BatchNorm2d, input: Ref) -> Ref:
    if norm.running_mean is None or norm.running_var is None:
        raise _Unknown("it has no running statistics, so that a sample depends on its batch")
    column = (-1, *[1] * (len(reader.shapes[input.index]) - 1))
    factor = (norm.running_var + norm.eps).rsqrt()
    factor = factor if norm.weight is None else factor * norm.weight
    bias = torch.zeros_like(factor) if norm.bias is None else norm.bias
    parts = factor, bias - norm.running_mean * factor, bias.abs() + (norm.running_mean * factor).abs()
    return reader.add(ops.Scale(*(part.reshape(column).expand(reader.shapes[input.index]) for part in parts), 10), input)


def _leaky_module(reader: Reader, layer: nn.LeakyReLU, input: Ref) -> Ref:
    return reader.add(ops.LeakyReLU(layer.negative_slope), input)


def _relu(reader: Reader, _: Any, input: Ref, inplace: bool = False) -> Ref:
    return reader.add(ops.LeakyReLU(), input)


def _leaky(reader: Reader, _: Any, input: Ref, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    return reader.add(ops.LeakyReLU(negative_slope), input)


def _softplus_module(reader: Reader, layer: nn.Softplus, input: Ref) -> Ref:
    return reader.add(ops.Softplus(layer.beta, layer.threshold), input)


def _softplus(reader: Reader, _: Any, input: Ref, beta: float = 1, threshold: float = 20) -> Ref:
    return reader.add(ops.Softplus(beta, threshold), input)


def _sides(value: Any, sides: int = 2) -> tuple[int, ...]:
    return (value,) * sides if isinstance(value, int) else tuple(value) * (sides if len(value) == 1 else 1)


def _max_pool_module(reader: Reader, layer: nn.MaxPool2d, input: Ref) -> Ref:
    how = layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices
    return _max_pool(reader, None, input, *how)


def _max_pool(
    reader: Reader,
    _: Any,
    input: Ref,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Ref:
    if return_indices or len(reader.shapes[input.index]) != 3:
        raise _Unknown("it is not the maximum over windows of images")
    stride = kernel_size if stride is None or stride == [] else stride
    out = functional.max_pool2d(reader.zeros(input), kernel_size, stride, padding, dilation, ceil_mode)
    how = [_sides(value) for value in (kernel_size, stride, padding, dilation)]
    return reader.add(ops.MaxPool(*how, reader.shapes[input.index], tuple(out.shape[2:])), input)  # type: ignore[arg-type]


def _average_module(reader: Reader, layer: nn.Module, input: Ref) -> Ref:
    """Average pooling; as many terms as a window has pixels, or the image if windows adapt to it."""
    shape = reader.shapes[input.index]
    kernel = getattr(layer, "kernel_size", shape[1:])
    return reader.linear(input, layer, prod(_sides(kernel, len(shape) - 1)) + 1)


def _average(reader: Reader, function: Any, input: Ref, *args: Any, **kwargs: Any) -> Ref:
    terms = prod(reader.shapes[input.index][1:]) + 1
    return reader.linear(input, lambda x: function(x, *args, **kwargs), terms)


def _mean(reader: Reader, _: Any, input: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    if dim is None:
        raise _Unknown("it mixes samples")
    return reader.linear(input, lambda x: x.mean(dim, keepdim), prod(reader.shapes[input.index]) + 1)


def _pad(reader: Reader, _: Any, input: Ref, pad: Any, mode: str = "constant", value: float | None = None) -> Ref:
    if mode != "constant" or value:
        raise _Unknown("it pads with other values than zeros")
    return reader.linear(input, lambda x: functional.pad(x, list(pad)), 0)


def _reshape(reader: Reader, target: Any, input: Ref, *args: Any, **kwargs: Any) -> Ref:
    """Any function that returns the numbers of a sample in the same order."""
    x = reader.zeros(input)
    out = getattr(x, target)(*args, **kwargs) if isinstance(target, str) else target(x, *args, **kwargs)
    shape = tuple(out.shape[1:])
    if len(out) != 2:
        raise _Unknown("it mixes samples")
    return reader.linear(input, lambda x: x.reshape(len(x), *shape), 0)


def _same(reader: Reader, _: Any, input: Ref, *_args: Any, **_kwargs: Any) -> Ref:
    return input


def _dropout(reader: Reader, _: Any, input: Ref, p: float = 0.5, training: bool = True, inplace: bool = False) -> Ref:
    if training and p > 0:
        raise _Unknown("it is random in eval mode too")
    return input


def _add(reader: Reader, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        return reader.add(ops.Add(), input, other)
    x, constant = (input, other) if isinstance(input, Ref) else (other, input)
    return reader.scale(x, 1.0, constant, 1)


def _subtract(reader: Reader, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise _Unknown("both depend on the input")
    return reader.scale(input, 1.0, -other, 1) if isinstance(input, Ref) else reader.scale(other, -1.0, input, 1)


def _multiply(reader: Reader, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(input, Ref) and isinstance(other, Ref):
        raise _Unknown("both depend on the input")
    x, constant = (input, other) if isinstance(input, Ref) else (other, input)
    return reader.scale(x, constant, 0.0, 1)


def _divide(reader: Reader, _: Any, input: Any, other: Any) -> Ref:
    if isinstance(other, Ref):
        raise _Unknown("it divides by what depends on the input")
    return reader.scale(input, 1 / other, 0.0, 2)


def _attribute(reader: Reader, _: Any, input: Ref, name: str) -> Any:
    if name not in ("shape", "ndim", "dtype", "device"):
        raise _Unknown
    return getattr(reader.zeros(input), name)


def _method(reader: Reader, name: str, input: Ref, *args: Any) -> Any:
    return getattr(reader.zeros(input), name)(*args)


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)

_MODULES: dict[type[nn.Module], Callable[..., Ref]] = {
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
    nn.ZeroPad2d: lambda reader, layer, input: reader.linear(input, layer, 0),
    nn.Identity: _same,
    **dict.fromkeys(_DROPOUTS, _same),
    **dict.fromkeys(_AVERAGES, _average_module),
}

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
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
