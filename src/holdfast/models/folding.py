"""Batch norm folded into the layer before it: in eval mode it is a scale and a shift that the weights can carry.

A network is traced once (torch.fx) and its folded weights are computed anew each time it is used, so training can use
it too. Where the graph does not allow it the network is used as it is, and the reason is kept.
"""

from copy import deepcopy
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.models.classifier import Classifier

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Pair = tuple[Layer, _BatchNorm, Layer]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OWN = frozenset(vars(nn.Module()))  # what every module has
_AGREE = 1e-3  # relative to the largest output; folding costs a few roundings, a wrong graph costs everything


class Folded:
    """A traced network with batch norm folded: ``folded(x)`` gives (features, logits)."""

    def __init__(self, graph: fx.GraphModule, pairs: list[Pair]) -> None:
        self.graph, self._pairs = graph, pairs

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the weights the network has now; milliseconds, so nothing tries to guess whether they changed."""
        for layer, norm, target in self._pairs:
            mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
            scale = norm.weight / (variance + norm.eps).sqrt()
            torch.mul(layer.weight, scale.reshape(-1, *[1] * (layer.weight.ndim - 1)), out=target.weight)
            shift = -mean if layer.bias is None else layer.bias - mean
            torch.add(norm.bias, shift * scale, out=cast(Tensor, target.bias))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = self.graph(x)
        return features, logits


_known: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Folded | str]] = WeakKeyDictionary()


def folded(model: nn.Module) -> Folded | str:
    """The folded form of a model, or the reason why it has none; traced once per structure."""
    structure = tuple(id(module) for module in model.modules())
    if model not in _known or _known[model][0] != structure:
        _known[model] = (structure, _fold(model))
    found = _known[model][1]
    if isinstance(found, Folded) and _hooked(model):
        return "it has hooks"
    return found


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs are the same but for rounding."""
    return a.shape == b.shape and bool((a - b).abs().max() <= _AGREE * (1e-6 + b.abs().max()))


def _hooked(model: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in model.modules() for kind in kinds)


def _fold(model: nn.Module) -> Folded | str:
    if _hooked(model):
        return "it has hooks"
    if not any(isinstance(module, _NORMS) for module in model.modules()):
        return "it has no batch norm"
    if not isinstance(model, Classifier) and hasattr(model, "outputs"):
        return "it has outputs of its own"
    root = _Both(model) if isinstance(model, Classifier) else model
    try:
        copy = deepcopy(root).eval()  # a forward that changes its own state must not change the model
        before = _state(copy)
        traced = _Tracer().trace(copy)
    except Exception as error:  # a user's code is run on stand-ins: anything can be raised
        return f"it cannot be traced ({type(error).__name__})"
    if _state(copy) != before:
        return "its forward pass changes its own state"
    if any(node.op == "get_attr" and node.target.startswith("_tensor_constant") for node in traced.nodes):
        return "it makes tensors of its own in the forward pass"
    graph = fx.GraphModule(root, traced)
    pairs = [_replace(graph, layer, norm) for layer, norm in _foldable(graph)]
    if not pairs:
        return "no batch norm follows a layer directly"
    if not isinstance(model, Classifier):
        _open(graph)
    graph.graph.lint()
    graph.recompile()
    return Folded(graph, pairs)


class _Tracer(fx.Tracer):
    """Sees a linear layer of any kind as one: the input of the last one is the features."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)


def _state(model: nn.Module) -> list[object]:
    """What a forward pass could change: the versions of tensors, and plain attributes."""
    plain = [
        (name, value if isinstance(value, int | float | str | tuple | None) else (id(value), len(value)))
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in _OWN and isinstance(value, int | float | str | tuple | list | dict | set | None)
    ]
    return [*plain, *(tensor._version for tensor in (*model.parameters(), *model.buffers()))]


class _Both(nn.Module):
    """A classifier that gives features and logits, for tracing."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.normalize, self.encoder, self.head = model.normalize, model.encoder, model.head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(self.normalize(x))
        return features, self.head(features)


def _open(graph: fx.GraphModule) -> None:
    """Make a graph that gives logits give features too, as :func:`holdfast.models.classifier.adapt` defines them."""
    *nodes, output = graph.graph.nodes
    linear = [n for n in nodes if n.op == "call_module" and isinstance(_module(graph, n), nn.Linear)]
    logits = output.args[0]
    with graph.graph.inserting_before(output):
        features = graph.graph.call_function(torch.flatten, (linear[-1].args[0], 1)) if linear else logits
        output.args = ((features, logits),)


def _module(graph: fx.GraphModule, node: fx.Node) -> nn.Module:
    return graph.get_submodule(str(node.target))


def _foldable(graph: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Layers used once, by nothing but a batch norm with fixed statistics."""
    calls = [node for node in graph.graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    found = []
    for norm in calls:
        layer, module = norm.args[0], _module(graph, norm)
        fixed = type(module) in _NORMS and module.affine and module.track_running_stats
        if fixed and layer in calls and type(_module(graph, layer)) in _LAYERS and len(layer.users) == 1:
            found += [(layer, norm)] if targets.count(layer.target) == targets.count(norm.target) == 1 else []
    return found


def _replace(graph: fx.GraphModule, layer: fx.Node, norm: fx.Node) -> Pair:
    """Put a layer with weights of its own in the place of layer and norm."""
    old, batch_norm = cast(Layer, _module(graph, layer)), cast(_BatchNorm, _module(graph, norm))
    target = _twin(old)
    name = "folded_" + str(layer.target).replace(".", "_")
    graph.add_submodule(name, target)
    layer.target = name
    norm.replace_all_uses_with(layer)
    graph.graph.erase_node(norm)
    return old, batch_norm, target


def _twin(layer: Layer) -> Layer:
    """A layer of the same kind and sizes, with a bias, whose weights want no gradient."""
    twin = deepcopy(layer).requires_grad_(False).eval()
    if twin.bias is None:
        twin.bias = nn.Parameter(twin.weight.new_zeros(len(twin.weight)), requires_grad=False)
    return twin
