"""Runs of plain layers, forward and backward by hand.

Autograd builds a graph of every pass; for layers one after another with fixed weights the way back is known
beforehand. A run is one node of that graph: it keeps only what its own way back needs and overwrites what nobody else
reads.
"""

from collections.abc import Sequence
from operator import getitem
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from holdfast.losses.metric import length
from holdfast.models import blocks
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.models.heads.linear import Linear
from holdfast.models.packed import Packed, worth_packing

_aten = torch.ops.aten


class Raised(nn.Module):
    """The same numbers in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Them."""
        return x.float()


_HEADS = (nn.Linear, Linear, Hypersphere)
_PLAIN = (*_HEADS, Raised, nn.ReLU, nn.AvgPool2d, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


class Layer(Protocol):
    """``forward`` gives the output and what ``backward`` needs to turn the gradient there into that of the input.

    ``backward`` may overwrite the gradient it is given where that is its ``own``. Under grad mode ``forward`` is made
    of operations that torch can differentiate, and ``backward`` is not asked.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...
    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor: ...


class Run(nn.Module):
    """Layers one after another; where ``tap`` is above 0, the output of the first so many of them is given too."""

    def __init__(self, layers: Sequence[Layer], tap: int = 0) -> None:
        super().__init__()
        self.layers, self.tap = layers, tap

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The output of the last layer, after that of the tapped one where there is one."""
        return cast(Tensor | tuple[Tensor, Tensor], _Pass.apply(x, self.layers, self.tap))  # type: ignore[no-untyped-call]

    @property
    def weighted(self) -> list[nn.Module]:
        """The modules of whose weights something is made that serves all passes."""
        return [layer.module for layer in self.layers if isinstance(layer, _Linear | _Sphere | _Conv)]

    def refresh(self) -> None:
        """Make anew what is made of the weights."""
        for layer in self.layers:
            if isinstance(layer, _Linear | _Sphere | _Conv):
                layer.refresh()

    def pack(self, wanted: bool) -> None:
        """Multiply with packed weights from now on, or with plain ones."""
        for layer in self.layers:
            if isinstance(layer, _Linear):
                layer.pack(wanted)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Sequence[Layer], tap: int) -> Tensor | tuple[Tensor, Tensor]:
        saved: list[Tensor] = []
        ctx.layers, ctx.tap, ctx.sizes = layers, tap, []
        ctx.begin, ctx.version = x, None if x.is_inference() else x._version
        tapped = x
        for number, layer in enumerate(layers, 1):
            x, kept = layer.forward(x)
            ctx.sizes.append(len(kept))
            saved += kept
            tapped = x if number == tap else tapped
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)  # torch frees them after use and notices where they were overwritten
        # detached: what is kept may be an output itself, which will know this context: a circle
        return (tapped.detach(), x.detach()) if tap else x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        if all(grad is None for grad in grads):
            return None, None, None
        if torch.is_grad_enabled():  # the slope is to be differentiated too
            return _differentiable(ctx, grads), None, None
        saved, grad, own = list(ctx.saved_tensors), grads[-1], False
        for number in range(len(ctx.layers), 0, -1):
            if number == ctx.tap and grads[0] is not None:
                grad, own = grads[0] if grad is None else grad + grads[0], grad is not None
            kept = [saved.pop() for _ in range(ctx.sizes[number - 1])]
            if grad is not None:
                layer = ctx.layers[number - 1]
                grad = layer.backward(grad, tuple(reversed(kept)), own)
                own = own or not isinstance(layer, _Flatten)  # a flattened one is the given one in another shape
        return grad, None, None


def _differentiable(ctx: Any, grads: Sequence[Tensor | None]) -> Tensor:
    """The gradient of the input as a function that torch knows: the pass is made again."""
    x = ctx.begin
    if not x.is_inference() and x._version != ctx.version:
        raise RuntimeError("the input of a pass was modified by an inplace operation before its second derivative")
    outputs, last = [], x
    for number, layer in enumerate(ctx.layers, 1):
        last, _ = layer.forward(last)
        outputs += [last] if number in (ctx.tap, len(ctx.layers)) else []
    pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    of, given = zip(*pairs, strict=True)
    (found,) = torch.autograd.grad(of, x, given, create_graph=True)
    return cast(Tensor, found)


def _where_positive(grad: Tensor, y: Tensor, own: bool) -> Tensor:
    """The gradient before a ReLU whose output is y."""
    if own:
        _aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad)
        return grad
    return cast(Tensor, _aten.threshold_backward(grad, y, 0))


class _Linear:
    """A linear layer, with the ReLU after it where there is one."""

    def __init__(self, module: nn.Linear, relu: bool) -> None:
        self.module, self.relu = module, relu
        self.refresh()

    def refresh(self) -> None:
        self.known: Packed | None = None  # made when it is first wanted
        self.packed: Packed | None = None

    def pack(self, wanted: bool) -> None:
        if wanted and self.known is None and worth_packing(self.module.weight):
            self.known = Packed(self.module.weight)
        self.packed = self.known if wanted else None

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.packed is not None and not torch.is_grad_enabled():
            y = self.packed.there(x, self.module.bias, self.relu)
        else:
            y = F.linear(x, self.module.weight, self.module.bias)
            y = y.relu_() if self.relu else y
        return y, ((y,) if self.relu else ())

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        if kept:
            grad = _where_positive(grad, kept[0], own)
        return grad @ self.module.weight if self.packed is None else self.packed.back(grad)


class _Sphere:
    """Scaled cosines: the directions of the classes are worked out once for all passes."""

    def __init__(self, module: Hypersphere) -> None:
        self.module = module
        self.least = length(module.weight.new_zeros(1, module.in_features))  # of a feature that is zero
        self.refresh()

    def refresh(self) -> None:
        self.directions = self.module.scale * self.module.directions().detach()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if torch.is_grad_enabled():
            return self.module(x), ()
        along = F.linear(x, self.directions)
        if not self.module.feature_norm:
            return along, ()
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.least)
        return along / size, (x, along, size)  # not the output, which others may overwrite

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        if not kept:
            return grad @ self.directions
        x, along, size = kept
        grad = grad / size  # few numbers: what is left for the many of x is one product and one sum
        inward = (grad * along).sum(-1, keepdim=True).div_(size).div_(size)
        return (grad @ self.directions).addcmul_(x, inward, value=-1)


class _Conv:
    """A convolution of images, with the ReLU after it where there is one."""

    def __init__(self, module: nn.Conv2d, relu: bool) -> None:
        self.module, self.relu = module, relu
        self.side = blocks.side(module)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        self.blocks = blocks.kernel(self.module.weight, self.side) if self.side > 1 else None

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        m = self.module
        y = F.conv2d(x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)
        return (y.relu_(), (x, y)) if self.relu else (y, (x,))

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        m, x = self.module, kept[0]
        if self.relu:
            grad = _where_positive(grad, kept[1], own)
        if x.ndim == 3:  # one image without a batch
            grad, x = grad[None], x[None]
        if self.blocks is not None and x.shape[2] % self.side == x.shape[3] % self.side == 0:
            found = blocks.image_gradient(grad, self.blocks, m, self.side)
            return found if kept[0].ndim == 4 else found[0]
        shape = (m.stride, m.padding, m.dilation, False, [0], m.groups)
        found, *_ = _aten.convolution_backward(grad, x, m.weight, None, *shape, [True, False, False])
        return cast(Tensor, found if kept[0].ndim == 4 else found[0])


class _Raise:
    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return x.float(), (x.new_empty(0),)  # for its type alone

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        return grad.to(kept[0].dtype)


class _Relu:
    """A ReLU whose input is somebody else's."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = F.relu(x)
        return y, (y,)

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        return _where_positive(grad, kept[0], own)


class _MaxPool:
    def __init__(self, module: nn.MaxPool2d) -> None:
        m = module
        self.settings = _pair(m.kernel_size), _pair(m.stride), _pair(m.padding), _pair(m.dilation), m.ceil_mode

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, places = _aten.max_pool2d_with_indices(x, *self.settings)
        return y, (x, places)

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        x, places = kept
        return cast(Tensor, _aten.max_pool2d_with_indices_backward(grad, x, *self.settings, places))


class _AvgPool:
    def __init__(self, module: nn.AvgPool2d) -> None:
        m = module
        shape = _pair(m.kernel_size), _pair(m.stride), _pair(m.padding)
        self.settings = *shape, m.ceil_mode, m.count_include_pad, m.divisor_override

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return cast(Tensor, _aten.avg_pool2d(x, *self.settings)), (x,)

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        return cast(Tensor, _aten.avg_pool2d_backward(grad, *kept, *self.settings))


class _Flatten:
    def __init__(self, module: nn.Flatten) -> None:
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return cast(Tensor, self.module(x)), (x.data,)  # for its shape alone, whoever overwrites it

    def backward(self, grad: Tensor, kept: tuple[Tensor, ...], own: bool) -> Tensor:
        (x,) = kept
        grad = grad.reshape(x.shape)
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        # small here and large behind the pooling before it: the order of pixels is put right here
        return grad.contiguous(memory_format=torch.channels_last) if last else grad


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def join(graph: fx.GraphModule) -> list[Run]:
    """Put a run in the place of every sequence of plain layers of a graph; the graph is to be recompiled."""
    runs: list[Run] = []
    for nodes in _sequences(graph):
        modules = [graph.get_submodule(str(node.target)) for node in nodes]
        cut = next((number for number, node in enumerate(nodes[:-1], 1) if len(node.users) > 1), 0)
        before, after = _layers(modules[:cut]), _layers(modules[cut:])
        if all(isinstance(layer, _Flatten) for layer in (*before, *after)):
            continue  # only another view of its input, which somebody may overwrite through it
        run, name = Run([*before, *after], len(before)), f"run_{len(runs)}"
        graph.add_submodule(name, run)
        with graph.graph.inserting_after(nodes[-1]):
            node = graph.graph.call_module(name, (nodes[0].args[0],))
        if cut:
            with graph.graph.inserting_after(node):
                node, tapped = (graph.graph.call_function(getitem, (node, place)) for place in (1, 0))
            nodes[cut - 1].replace_all_uses_with(tapped)
        nodes[-1].replace_all_uses_with(node)
        for old in reversed(nodes):
            graph.graph.erase_node(old)
        runs.append(run)
    return runs


def _sequences(graph: fx.GraphModule) -> list[list[fx.Node]]:
    """Plain layers, each of which but the last is read by the next one, with nothing done in between, and by nobody
    else, but for the features that a head reads: the network may give them too.
    """
    found: list[list[fx.Node]] = []
    modules = {node: graph.get_submodule(str(node.target)) for node in graph.graph.nodes if node.op == "call_module"}
    for node, module in modules.items():
        if len(node.args) != 1 or not _plain(module):
            continue
        before = node.args[0]
        follows = bool(found) and found[-1][-1] is before is node.prev
        if follows and len(before.users) > 1:
            follows = isinstance(module, nn.Linear) and _given(node, before) and _tappable(found[-1], modules)
        overwrites = isinstance(module, nn.ReLU) and module.inplace
        if overwrites and not (follows and type(modules[before]) in (nn.Linear, nn.Conv2d)):
            continue  # somebody else may read what it overwrites
        if follows:
            found[-1].append(node)
        else:
            found.append([node])
    return found


def _given(head: fx.Node, features: fx.Node) -> bool:
    """Whether what a head reads is read by nobody else, only given by the network, flat or as it is."""
    others = [user for user in features.users if user is not head]
    flat = [user for user in others if user.target is torch.flatten]
    return all(user.op == "output" for node in (features, *flat) for user in node.users if user not in (head, *flat))


def _tappable(nodes: list[fx.Node], modules: dict[fx.Node, nn.Module]) -> bool:
    """Whether a sequence gives nothing else yet and makes something of its input, not only another view."""
    views = nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d
    return all(len(node.users) == 1 for node in nodes[:-1]) and not all(isinstance(modules[n], views) for n in nodes)


def _plain(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.MaxPool2d:
        return not module.return_indices
    return type(module) in _PLAIN


def _layers(modules: list[nn.Module]) -> list[Layer]:
    layers: list[Layer] = []
    for module, after in zip(modules, [*modules[1:], None], strict=False):
        relu = type(after) is nn.ReLU  # taken along by the layer before it
        if isinstance(module, Hypersphere):
            layers.append(_Sphere(module))
        elif isinstance(module, nn.Linear):
            layers.append(_Linear(module, relu))
        elif isinstance(module, nn.Conv2d):
            layers.append(_Conv(module, relu))
        elif isinstance(module, nn.MaxPool2d):
            layers.append(_MaxPool(module))
        elif isinstance(module, nn.AvgPool2d):
            layers.append(_AvgPool(module))
        elif isinstance(module, nn.Flatten):
            layers.append(_Flatten(module))
        elif isinstance(module, Raised):
            layers.append(_Raise())
        elif isinstance(module, nn.ReLU) and not (layers and getattr(layers[-1], "relu", False)):
            layers.append(_Relu())
    return layers
