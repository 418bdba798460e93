"""Batch norm folded into the layer before it: in eval mode it is a scale and a shift that the weights can carry.

A network is traced once (torch.fx) and its folded weights are computed anew each time it is used, so training can use
it too. Where the graph does not allow it the network is used as it is, and the reason is kept.
"""

from collections.abc import Collection
from copy import deepcopy
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from holdfast.models import runs
from holdfast.models.classifier import Classifier
from holdfast.models.layers import Raised
from holdfast.models.packed import OFTEN
from holdfast.models.unchanged import Unchanged

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Pair = tuple[Layer, _BatchNorm, Layer]
Copy = tuple[nn.Module, nn.Module]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OWN = frozenset(vars(nn.Module()))  # what every module has
_AGREE = 1e-3  # relative to the largest output; folding costs a few roundings, a wrong graph costs everything
_FEW = 4  # passes
_ROWS = 128  # of weights that are lowered at once: they need no memory beside the cache
_ROUGHLY = 0.1  # the same for bfloat16, which has three digits


class Folded:
    """A traced network with batch norm folded: ``folded(x)`` gives (features, logits), computed in ``dtype``."""

    def __init__(
        self,
        graph: fx.GraphModule,
        pairs: list[Pair],
        copies: list[Copy],
        joined: list[runs.Run],
        normalize: nn.Module,
        dtype: torch.dtype,
    ) -> None:
        self.graph, self._pairs, self._copies, self._runs = graph, pairs, copies, joined
        self._normalize, self._dtype = normalize, dtype
        made = {id(target) for *_, target in pairs} | {id(twin) for _, twin in copies}
        read = [module for run in joined for module in run.weighted if id(module) not in made]
        folded = [module for layer, norm, _ in pairs for module in (layer, norm)]
        self._sources = [*folded, *(source for source, _ in copies), *read]
        self._unchanged = Unchanged()
        self._images = any(isinstance(target, nn.Conv2d) for *_, target in pairs)
        self._layout = torch.channels_last if self._images else torch.contiguous_format  # channels of a pixel together

    @property
    def exact(self) -> bool:
        """Whether it gives what the network gives but for a few roundings."""
        return self._dtype != torch.bfloat16

    def pays(self, passes: int) -> bool:
        """Whether so many passes are worth folding the weights: of linear layers alone that costs as much as a few."""
        return passes >= _FEW or self._images or not self.exact

    @torch.no_grad()
    def prepare(self, passes: int) -> None:
        """Get ready for so many passes with the weights the network has now."""
        if not self._unchanged(self._sources):
            self._refresh()
        for run in self._runs:
            run.pack(passes >= OFTEN)  # by the call alone, so that a run that was stopped goes on with the same bits

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
        features, logits = self.graph.forward(normal.to(dtype, memory_format=layout))  # it has no hooks to call
        return features.to(x.dtype), logits.to(x.dtype)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


_known: WeakKeyDictionary[nn.Module, dict[torch.dtype, tuple[object, Folded | str]]] = WeakKeyDictionary()


def folded(model: nn.Module, dtype: torch.dtype = torch.float32) -> Folded | str:
    """The folded form of a model, or the reason why it has none; traced once per structure and type."""
    if altered := _altered(model):
        return altered  # for now: it may be undone
    tensors = [(tensor.shape, tensor.dtype, tensor.device) for tensor in _tensors(model)]
    structure = [id(module) for module in model.modules()], tensors
    known = _known.setdefault(model, {})
    if dtype not in known or known[dtype][0] != structure:
        known[dtype] = (structure, _fold(model, dtype))
    return known[dtype][1]


def agree(a: Tensor, b: Tensor, exact: bool = True) -> bool:
    """Whether two outputs are the same but for rounding."""
    allowed = _AGREE if exact else _ROUGHLY
    return a.shape == b.shape and bool((a - b).abs().max() <= allowed * (1e-6 + b.abs().max()))


def _altered(model: nn.Module) -> str:
    """What makes calls of layers do other things than their classes say, if anything."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, kind) for module in model.modules() for kind in kinds) or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return "it has hooks"
    # reused statistics (models.statistics) replace that of batch norms, in a way that folding sees
    own = any("forward" in vars(module) for module in model.modules() if not isinstance(module, _BatchNorm))
    return "it has a forward pass that is not its class's" if own else ""


@torch.inference_mode(False)  # what is made here serves later attacks too
def _fold(model: nn.Module, dtype: torch.dtype) -> Folded | str:
    lowered = dtype == torch.bfloat16
    if not lowered and not any(isinstance(module, _NORMS) for module in model.modules()):
        return "it has no batch norm"
    if not isinstance(model, Classifier) and hasattr(model, "outputs"):
        return "it has outputs of its own"
    kept = [model.head] if lowered and isinstance(model, Classifier) and isinstance(model.head, nn.Linear) else []
    root = _Both(model, bool(kept)) if isinstance(model, Classifier) else model
    traced = _trace(root)
    if isinstance(traced, str):
        return traced
    if lowered and any(node.op == "get_attr" for node in traced.nodes):
        return "it uses tensors that belong to no layer"
    graph = fx.GraphModule(root, traced)
    pairs = [_replace(graph, layer, norm, dtype) for layer, norm in _foldable(graph)]
    if not pairs and not lowered:
        return "no batch norm follows a layer directly"
    copies = _lower(graph, [*kept, *(target for *_, target in pairs)], dtype) if lowered else []
    if not isinstance(model, Classifier):
        _open(graph)
    joined = runs.join(graph)
    graph.graph.lint()
    graph.recompile()
    normalize = model.normalize if isinstance(model, Classifier) else nn.Identity()
    return Folded(graph, pairs, copies, joined, normalize, dtype)


def _trace(root: nn.Module) -> fx.Graph | str:
    """The graph of a network, or why it has none that could be trusted."""
    try:
        copy = deepcopy(root).eval()  # a forward that changes its own state must not change the model
        before = _state(copy)
        with torch.random.fork_rng(devices=[]):  # it may draw, which later attacks will not do again
            traced = _Tracer().trace(copy)
    except Exception as error:  # a user's code is run on stand-ins: anything can be raised
        return f"it cannot be traced ({type(error).__name__})"
    if _state(copy) != before:
        return "its forward pass changes its own state"
    if any(node.op == "get_attr" and node.target.startswith("_tensor_constant") for node in traced.nodes):
        return "it makes tensors of its own in the forward pass"
    return traced


class _Tracer(fx.Tracer):
    """Sees a linear layer of any kind as one: the input of the last one is the features."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear | Raised) or super().is_leaf_module(m, module_qualified_name)


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
    """A classifier after its normalization that gives features and logits, for tracing.

    Where the encoder alone is lowered, features are raised again: a product with ten classes costs more in bfloat16,
    and logits keep their digits.
    """

    def __init__(self, model: Classifier, raised: bool) -> None:
        super().__init__()
        self.encoder, self.head = model.encoder, model.head
        self.between = Raised() if raised else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.between(self.encoder(x))
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
            once = targets.count(layer.target) == targets.count(norm.target) == 1
            fits = len(cast(Layer, _module(graph, layer)).weight) == module.num_features  # else it norms another axis
            found += [(layer, norm)] if once and fits else []
    return found


def _replace(graph: fx.GraphModule, layer: fx.Node, norm: fx.Node, dtype: torch.dtype) -> Pair:
    """Put a layer with weights of its own in the place of layer and norm."""
    old, batch_norm = cast(Layer, _module(graph, layer)), cast(_BatchNorm, _module(graph, norm))
    target = cast(Layer, _twin(old, dtype))
    if target.bias is None:
        target.bias = nn.Parameter(target.weight.new_zeros(len(target.weight)), requires_grad=False)
    _retarget(graph, layer, target)
    norm.replace_all_uses_with(layer)
    graph.graph.erase_node(norm)
    return old, batch_norm, target


def _lower(graph: fx.GraphModule, others: Collection[nn.Module], dtype: torch.dtype) -> list[Copy]:
    """Give every layer with tensors but those others a copy of a lower type."""
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
    """A module of the same kind and sizes whose tensors are its own and want no gradient."""
    twin = deepcopy(module).requires_grad_(False).eval()
    if isinstance(twin, nn.Conv2d):
        twin.weight.data = twin.weight.data.contiguous(memory_format=torch.channels_last)
    return twin.to(dtype) if dtype == torch.bfloat16 else twin
