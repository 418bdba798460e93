"""Folds batch norm into the layer before it: in eval mode it is a scale and a shift of that layer's output.

A network is traced once (torch.fx); its folded weights are computed again when the weights change, so training can use
it too. A network that cannot be folded is called as it is, and the reason is recorded.
"""

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from holdfast.crafting import fused
from holdfast.crafting.layers import Raised
from holdfast.crafting.packed import OFTEN
from holdfast.crafting.tracing import attributes, hooked, input_gradient, structure, trace
from holdfast.crafting.unchanged import Unchanged
from holdfast.models.classifier import Classifier, as_written

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Pair = tuple[Layer, _BatchNorm, Layer]
Copy = tuple[nn.Module, nn.Module]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_AGREE = 1e-3  # relative to the largest output; folding changes the rounding, a wrong graph changes everything
_FEW = 4  # passes
_ROWS = 128  # of a weight that are cast at once, so that the product in float32 stays in the cache
_NOISE = 1e-6  # of the largest gradient: smaller ones may be what is left of terms that cancel
_SIGNS = 0.1  # share of signs of gradients that rounding may change; trained networks in bfloat16 lose 0.01
_ROUGHLY = 0.1  # the same for bfloat16, which has two to three decimal digits


class Folded:
    """A traced network with batch norm folded: ``folded(x)`` returns (features, logits), computed in ``dtype``."""

    def __init__(
        self,
        traced: fx.GraphModule,
        graph: fx.GraphModule,
        pairs: list[Pair],
        copies: list[Copy],
        joined: list[fused.Run],
        normalize: nn.Module,
        dtype: torch.dtype,
    ) -> None:
        self._traced: fx.GraphModule | None = traced  # until it is found faithful
        self.agreed = False  # in gradients with the network, when they were last compared; in bfloat16 for the weights
        self.graph, self._pairs, self._copies, self._runs = graph, pairs, copies, joined
        self._normalize, self._dtype = normalize, dtype
        made = {id(target) for *_, target in pairs} | {id(twin) for _, twin in copies}
        read = [layer.module for run in joined for layer in run.weighted if id(layer.module) not in made]
        folded = [module for layer, norm, _ in pairs for module in (layer, norm)]
        self._sources = [*folded, *(source for source, _ in copies), *read]
        self._unchanged = Unchanged()
        self._images = any(isinstance(target, nn.Conv2d) for *_, target in pairs)
        self._layout = torch.channels_last if self._images else torch.contiguous_format  # for images

    @property
    def exact(self) -> bool:
        """True if it computes in the precision of the network."""
        return self._dtype != torch.bfloat16

    def pays(self, passes: int) -> bool:
        """True if that many passes are worth folding the weights, which costs a few passes for linear layers."""
        return passes >= _FEW or self._images or not self.exact

    def faithful(self, logits: Callable[[Tensor], Tensor], x: Tensor) -> bool:
        """True if the trace has the input gradients of the network; compared until it is found so.

        A custom backward (torch.autograd.Function) and ``no_grad`` leave no mark in a trace. The trace computes the
        same operations as the network, so the tolerance is small.
        """
        if (traced := self._traced) is None:
            return True

        def as_traced(x: Tensor) -> Tensor:
            out = traced(self._normalize(x))
            return cast(Tensor, out[-1] if isinstance(out, tuple) else out)

        same = agree(input_gradient(as_traced, x), input_gradient(logits, x))
        self._traced = None if same else traced
        return same

    @torch.no_grad()
    def prepare(self, passes: int) -> None:
        """Prepare that many passes with the present weights of the network."""
        if not self._unchanged(self._sources):
            self._refresh()
            self.agreed &= self.exact
        for run in self._runs:
            run.pack(passes >= OFTEN)  # by the call alone, so that a resumed run gives the same bits

    def _refresh(self) -> None:
        for layer, norm, target in self._pairs:
            mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
            scale = norm.weight / (variance + norm.eps).sqrt()
            column = scale.reshape(-1, *[1] * (layer.weight.ndim - 1))
            if self.exact:
                torch.mul(layer.weight, column, out=target.weight)
            else:
                parts = (torch.split(whole, _ROWS) for whole in (target.weight, layer.weight, column))
                for new, old, factor in zip(*parts, strict=True):
                    new.copy_(old * factor)
            shift = -mean if layer.bias is None else layer.bias - mean
            cast(Tensor, target.bias).copy_(norm.bias + shift * scale)
        for source, twin in self._copies:
            for old, new in zip(_tensors(source), _tensors(twin), strict=True):
                new.copy_(old)
        for run in self._runs:
            run.refresh()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normal = self._normalize(x)
        dtype = normal.dtype if self.exact else self._dtype
        layout = self._layout if normal.ndim == 4 else torch.contiguous_format  # images may come flat
        features, logits = self.graph.forward(normal.to(dtype, memory_format=layout))  # not called: it has no hooks
        return features.to(x.dtype), logits.to(x.dtype)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


_known: WeakKeyDictionary[nn.Module, dict[torch.dtype, "_Made"]] = WeakKeyDictionary()


class _Made(NamedTuple):
    """The folded form of a model, and what it was made from."""

    structure: list[object]
    attributes: list[object]
    form: Folded | str


def folded(model: nn.Module, dtype: torch.dtype = torch.float32) -> Folded | str:
    """The folded form of a model, or the reason why it has none; traced once per structure and type."""
    modules = list(model.modules())  # once: walking the tree is what a short call pays most for
    if altered := _altered(modules):
        return altered  # not stored: it may be undone
    here, settings, known = structure(modules), attributes(modules), _known.setdefault(model, {})
    made = known.get(dtype)
    if made is None or made.structure != here or (made.attributes != settings and isinstance(made.form, Folded)):
        made = known[dtype] = _Made(here, settings, _fold(model, dtype))
    return made.form


def agree(a: Tensor, b: Tensor, exact: bool = True) -> bool:
    """True if two outputs are equal up to rounding."""
    allowed = _AGREE if exact else _ROUGHLY
    return a.shape == b.shape and bool((a - b).abs().max() <= allowed * (1e-6 + b.abs().max()))


def same_direction(a: Tensor, b: Tensor) -> bool:
    """True if gradients have nearly the signs of others, except where these are zero but for rounding.

    Rounding can make gradients vanish that are large enough to follow, such as those of a steep sigmoid.
    """
    counted = b.abs() > _NOISE * b.abs().max()
    differ = (a.sign() != b.sign()) & counted
    return bool(differ.sum() <= _SIGNS * counted.sum())


def _altered(modules: list[nn.Module]) -> str:
    """What makes calls of modules do other things than their classes say, if anything."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return "torch.jit has compiled it"
    if any(map(hooked, modules)) or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return "it has hooks"
    # reused statistics (models.statistics) replace the forward pass of batch norms, in a way that folding sees
    patched = any("forward" in vars(module) for module in modules if not isinstance(module, _BatchNorm))
    return "it has a forward pass that is not its class's" if patched else ""


@torch.inference_mode(False)  # later attacks outside of inference mode use it too
def _fold(model: nn.Module, dtype: torch.dtype) -> Folded | str:
    lowered = dtype == torch.bfloat16
    if not lowered and not any(isinstance(module, _NORMS) for module in model.modules()):
        return "it has no batch norm"
    if not as_written(model) and hasattr(model, "outputs"):
        return "it has outputs of its own"
    kept = [model.head] if lowered and as_written(model) and isinstance(model.head, nn.Linear) else []
    root = _Both(model, bool(kept)) if as_written(model) else model
    traced = trace(root)
    if isinstance(traced, str):
        return traced
    if lowered and any(node.op == "get_attr" for node in traced.nodes):
        return "it uses tensors that belong to no layer"
    graph = fx.GraphModule(root, deepcopy(traced))
    _reshape(graph)
    pairs = [_replace(graph, layer, norm, dtype) for layer, norm in _foldable(graph)]
    if not pairs and not lowered:
        return "no batch norm follows a layer directly"
    copies = _lower(graph, [*kept, *(target for *_, target in pairs)], dtype) if lowered else []
    if not as_written(model):
        _open(graph)
    joined = fused.join(graph)
    graph.graph.lint()
    graph.recompile()
    normalize = model.normalize if as_written(model) else nn.Identity()
    return Folded(fx.GraphModule(root, traced), graph, pairs, copies, joined, normalize, dtype)


class _Both(nn.Module):
    """A classifier without its normalization that returns features and logits, for tracing.

    If only the encoder is computed in bfloat16, features are cast back to float32: the head's small product is slower
    in bfloat16, and logits keep their precision.
    """

    def __init__(self, model: Classifier, raised: bool) -> None:
        super().__init__()
        self.encoder, self.head = model.encoder, model.head
        self.between = Raised() if raised else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.between(self.encoder(x))
        return features, self.head(features)


def _open(graph: fx.GraphModule) -> None:
    """Make a graph that returns logits return features too, as :func:`holdfast.models.classifier.adapt` does."""
    *nodes, output = graph.graph.nodes
    linear = [n for n in nodes if n.op == "call_module" and isinstance(_module(graph, n), nn.Linear)]
    logits = output.args[0]
    with graph.graph.inserting_before(output):
        given = linear and (*linear[-1].args, *linear[-1].kwargs.values())[0]
        features = graph.graph.call_function(torch.flatten, (given, 1)) if linear else logits
        output.args = ((features, logits),)


def _reshape(graph: fx.GraphModule) -> None:
    """Replace ``view`` by ``reshape``: with channels-last images torch has to copy."""
    for node in graph.graph.nodes:
        types = any(isinstance(value, torch.dtype) for value in (*node.args, *node.kwargs.values()))
        if node.op == "call_method" and node.target == "view" and not types:
            node.target = "reshape"


def _module(graph: fx.GraphModule, node: fx.Node) -> nn.Module:
    return graph.get_submodule(str(node.target))


def _foldable(graph: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Layers that are used once and feed only a batch norm with fixed statistics."""
    calls = [node for node in graph.graph.nodes if node.op == "call_module"]
    targets = [node.target for node in calls]
    pairs = [(node.args[0], node) for node in calls if node.args and node.args[0] in calls]
    alone = [(layer, norm) for layer, norm in pairs if layer.args and len(layer.users) == 1]
    once = [pair for pair in alone if all(targets.count(node.target) == 1 for node in pair)]
    return [(layer, norm) for layer, norm in once if _fits(_module(graph, layer), _module(graph, norm))]


def _fits(layer: nn.Module, norm: nn.Module) -> bool:
    """True if a batch norm has running statistics, a weight and a bias, and normalizes the outputs of a layer."""
    if type(layer) not in _LAYERS or type(norm) not in _NORMS or not norm.track_running_stats:
        return False
    parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return all(part is not None for part in parts) and len(cast(Layer, layer).weight) == norm.num_features


def _replace(graph: fx.GraphModule, layer: fx.Node, norm: fx.Node, dtype: torch.dtype) -> Pair:
    """Replace a layer and its batch norm by one layer with separate weights."""
    old, batch_norm = cast(Layer, _module(graph, layer)), cast(_BatchNorm, _module(graph, norm))
    target = cast(Layer, _twin(old, dtype))
    if target.bias is None:
        target.bias = nn.Parameter(target.weight.new_zeros(len(target.weight)), requires_grad=False)
    _retarget(graph, layer, target)
    norm.replace_all_uses_with(layer)
    graph.graph.erase_node(norm)
    return old, batch_norm, target


def _lower(graph: fx.GraphModule, others: Collection[nn.Module], dtype: torch.dtype) -> list[Copy]:
    """Replace every layer that has tensors, except the given ones, by a copy of a lower type."""
    done = {id(other) for other in others}
    twins: dict[int, Copy] = {}
    for node in graph.graph.nodes:
        module = _module(graph, node) if node.op == "call_module" else None
        if module is not None and id(module) not in done and _tensors(module):
            twins.setdefault(id(module), (module, _twin(module, dtype)))
            _retarget(graph, node, twins[id(module)][1])
    return list(twins.values())


def _retarget(graph: fx.GraphModule, node: fx.Node, module: nn.Module) -> None:
    node.target = "twin_" + str(node.target).replace(".", "_")
    graph.add_submodule(node.target, module)


def _twin(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module, with tensors that require no gradient."""
    twin = deepcopy(module).requires_grad_(False).eval()
    if isinstance(twin, nn.Conv2d):
        twin.weight.data = twin.weight.data.contiguous(memory_format=torch.channels_last)
    return twin.to(dtype) if dtype == torch.bfloat16 else twin
