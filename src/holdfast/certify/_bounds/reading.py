"""Reads the operations of a network from its trace."""

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.layers import FUNCTIONS, MODULES, SUPPORTED
from holdfast.certify._bounds.nodes import Node, Nodes, Ref, UnknownError
from holdfast.models.classifier import PerImage


class Reader:
    """Turns what depends on the input into nodes and computes everything else, such as sizes and constants."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model
        self.nodes = Nodes(example)
        self._found: dict[fx.Node, Any] = {}

    def read(self, graph: fx.Graph) -> tuple[Mapping[int, Node], int, int | None]:
        """The nodes, and the numbers of the output and of the last linear layer."""
        head = None
        for node in graph.nodes:
            if node.op == "output":
                return self.nodes.found, self._output(self._resolve(node.args[0])), head
            self._found[node] = value = Ref(0) if node.op == "placeholder" else self._read(node)
            if isinstance(value, Ref) and node.op == "call_module" and isinstance(self._target(node), nn.Linear):
                head = value.index
        raise AssertionError("a graph ends with an output")

    def _output(self, out: Any) -> int:
        if not isinstance(out, Ref) or not out.index or len(self.nodes.shapes[out.index]) != 1:
            raise ValueError("bounds need a network that returns logits of shape (b, classes); wrap it so that it does")
        if self.nodes.shapes[out.index][0] < 2:
            raise ValueError("the network has 1 output but a classifier has one for each class, two or more")
        for index, node in self.nodes.found.items():
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
            return (
                getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
            )
        make = (MODULES.get(type(target)) if node.op == "call_module" else FUNCTIONS.get(target)) or _refuse
        try:
            return make(self.nodes, target, *args, **kwargs)
        except UnknownError as reason:
            raise ValueError(_message(node, self.model, str(reason))) from None
        except TypeError:  # arguments that the function here does not have
            raise ValueError(_message(node, self.model)) from None


def _refuse(*_args: Any, **_kwargs: Any) -> Ref:
    raise UnknownError


def check_known(graph: fx.Graph, model: nn.Module) -> None:
    """Refuse operations that cannot be bounded for any input."""
    for node in graph.nodes:
        if node.op == "call_module" and type(model.get_submodule(str(node.target))) not in MODULES:
            raise ValueError(_message(node, model))
        of_sizes = str(getattr(node.target, "__module__", "")).endswith("operator")  # it may be arithmetic of sizes
        if node.op in ("call_function", "call_method") and node.target not in FUNCTIONS and not of_sizes:
            raise ValueError(_message(node, model))


def _message(node: fx.Node, model: nn.Module, reason: str = "") -> str:
    inside = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    if PerImage in inside:
        return (
            "bounds cannot handle images that are standardized by their own mean and deviation; train with fixed ones: "
            "leave out per_image, and give the mean and std of the data set"
        )
    module = node.op == "call_module"
    name = type(model.get_submodule(str(node.target))).__name__ if module else node.name
    where = f" ({node.target})" if module else f" (in {inside[-1].__name__})" if inside else ""
    return f"bounds cannot handle {name}{where}{': ' if reason else ''}{reason}; supported are {SUPPORTED}"
