"""A network as a list of operations that can be bounded, in float64."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.nodes import Node
from holdfast.certify._bounds.reading import Reader, check_known
from holdfast.crafting.tracing import hooked, trace

_HALF = (torch.float16, torch.bfloat16)
_AGREE = 1e-6  # relative to the largest output
_COMPARED = 8  # samples


@dataclass(frozen=True, eq=False)
class Network:
    """Operations in the order in which they run, by number; 0 is the input.

    ``features`` is the node that the last linear layer reads, the output if there is none.
    """

    nodes: Mapping[int, Node]
    output: int
    features: int

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of a node other than the input, without the batch axis."""
        return self.nodes[index].shape

    def values(self, x: Tensor) -> dict[int, Tensor]:
        """The values of all nodes at x."""
        found = {0: x}
        for index, node in self.nodes.items():
            found[index] = node.operation.apply(*(found[i] for i in node.inputs))
        return found

    def affine(self) -> set[int]:
        """The nodes that are affine functions of the input."""
        found = {0}
        for index, node in self.nodes.items():
            if isinstance(node.operation, ops.Affine | ops.Add) and found.issuperset(node.inputs):
                found.add(index)
        return found

    def bent_inputs(self) -> set[int]:
        """The nodes that activations and max pooling read: lines bound these only on intervals."""
        bent = (node for node in self.nodes.values() if not isinstance(node.operation, ops.Affine | ops.Add))
        return {index for node in bent for index in node.inputs} - {0}


def check(model: nn.Module) -> None:
    """Refuse networks whose layers cannot be bounded, as far as that can be seen without an input."""
    check_known(_graph(model), model)


def convert(model: nn.Module, x: Tensor) -> Network:
    """The operations of a network for inputs like x (b, ...), compared with the network itself."""
    graph = _graph(model)
    copy = deepcopy(model).eval().double().requires_grad_(False)
    few = x[:_COMPARED].detach().double() if len(x) else torch.zeros(1, *x.shape[1:], dtype=torch.float64)
    nodes, output, head = Reader(copy, few).read(graph)
    network = Network(nodes, output, output if head is None else nodes[head].inputs[0])
    _compare(network, copy, few)
    return network


def _graph(model: nn.Module) -> fx.Graph:
    tensors = [*model.parameters(), *model.buffers()]
    if half := {str(t.dtype).removeprefix("torch.") for t in tensors if t.dtype in _HALF}:
        raise ValueError(
            f"the network has {' and '.join(sorted(half))} weights, whose rounding errors are too large to certify; "
            "convert it with model.float()"
        )
    if not all(t.isfinite().all() for t in tensors if t.is_floating_point()):
        raise ValueError("the network has NaN or infinite weights; train it again or load other weights")
    for name, module in model.named_modules():
        if hooked(module) or "forward" in vars(module):
            raise ValueError(
                f"{name or 'the network'} has hooks or a forward pass that is not its class's, which bounds cannot "
                "see; remove them"
            )
    graph = trace(model)
    if isinstance(graph, str):
        raise ValueError(f"bounds read the layers of a network but {graph}")
    return graph


@torch.no_grad()
def _compare(network: Network, model: nn.Module, x: Tensor) -> None:
    """Refuse operations that do not compute what the network computes."""
    ours, own = network.values(x)[network.output], model(x)
    if isinstance(network.nodes[network.output].operation, ops.Cosines):
        ours, own = (out / out.abs().amax(1, keepdim=True).clamp_min(1e-300) for out in (ours, own))
    if not bool((ours - own).abs().max() <= _AGREE * (_AGREE + own.abs().max())):
        raise ValueError(
            "the layers of the network, read one by one, give other outputs than the network; a layer may overwrite "
            "an input that is used again: use layers with inplace=False"
        )
