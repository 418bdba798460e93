"""Sequences of known layers as one autograd function with a custom backward.

Autograd records a graph of every forward pass; for a sequence of layers with fixed weights the backward pass is known
beforehand. A run is one node of that graph: it saves only what its backward needs and works in place on tensors that
nothing else reads.
"""

from collections.abc import Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from holdfast.crafting.layers import VIEWS, Conv, Flatten, Layer, Linear, Sphere, by_hand, plain


class Run(nn.Module):
    """A sequence of layers; if ``tap`` is above 0, the output of the first ``tap`` layers is returned too."""

    def __init__(self, layers: Sequence[Layer], tap: int = 0) -> None:
        super().__init__()
        self.layers, self.tap = layers, tap
        # from whose weights something is computed once for all passes
        self.weighted = [layer for layer in layers if isinstance(layer, Linear | Sphere | Conv)]

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The output of the last layer, preceded by that of the tapped one if there is one."""
        return cast(Tensor | tuple[Tensor, Tensor], _Pass.apply(x, self.layers, self.tap))  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Compute again what depends on the weights."""
        for layer in self.weighted:
            layer.refresh()

    def pack(self, wanted: bool) -> None:
        """Use packed weights from now on, or plain ones."""
        for layer in self.layers:
            if isinstance(layer, Linear):
                layer.pack(wanted)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Sequence[Layer], tap: int) -> Tensor | tuple[Tensor, Tensor]:
        saved: list[Tensor] = []
        ctx.layers, ctx.tap, ctx.sizes = layers, tap, []
        ctx.begin, ctx.version = x, None if x.is_inference() else x._version
        tapped = x
        for number, layer in enumerate(layers, 1):
            x, needed = layer.forward(x)
            ctx.sizes.append(len(needed))
            saved += needed
            tapped = x if number == tap else tapped
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)  # torch frees them after use and notices if they were overwritten
        # detached: a saved tensor may be an output, which refers to this context: a reference cycle
        return (tapped.detach(), x.detach()) if tap else x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        if all(grad is None for grad in grads):
            return None, None, None
        if torch.is_grad_enabled():  # for second derivatives
            return _differentiable(ctx, grads), None, None
        saved, grad, may_overwrite = list(ctx.saved_tensors), grads[-1], False
        for number in range(len(ctx.layers), 0, -1):
            if number == ctx.tap and grads[0] is not None:
                grad, may_overwrite = grads[0] if grad is None else grad + grads[0], grad is not None
            needed = [saved.pop() for _ in range(ctx.sizes[number - 1])]
            if grad is not None:
                layer = ctx.layers[number - 1]
                grad = layer.backward(grad, tuple(reversed(needed)), may_overwrite)
                # the gradient of a flattening is a view of the given one
                may_overwrite = may_overwrite or not isinstance(layer, Flatten)
        return grad, None, None


def _differentiable(ctx: Any, grads: Sequence[Tensor | None]) -> Tensor:
    """The input gradient as a differentiable function: the forward pass is repeated under autograd."""
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


def join(graph: fx.GraphModule) -> list[Run]:
    """Replace every sequence of known layers in a graph by a run; the caller recompiles the graph."""
    runs: list[Run] = []
    for nodes in _sequences(graph):
        modules = [graph.get_submodule(str(node.target)) for node in nodes]
        cut = next((number for number, node in enumerate(nodes[:-1], 1) if len(node.users) > 1), 0)
        before, after = by_hand(modules[:cut]), by_hand(modules[cut:])
        if all(isinstance(layer, Flatten) for layer in (*before, *after)):
            continue  # only a view of its input, through which the input may be overwritten
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
    """Sequences of known layers in which only the next layer reads the output of each.

    The features that a head reads are an exception: the network may return them too.
    """
    found: list[list[fx.Node]] = []
    modules = {node: graph.get_submodule(str(node.target)) for node in graph.graph.nodes if node.op == "call_module"}
    for node, module in modules.items():
        if len(node.args) != 1 or not plain(module):
            continue
        before = node.args[0]
        follows = bool(found) and found[-1][-1] is before is node.prev
        if follows and len(before.users) > 1:
            follows = isinstance(module, nn.Linear) and _given(node, before) and _tappable(found[-1], modules)
        overwrites = isinstance(module, nn.ReLU) and module.inplace
        if overwrites and not (follows and type(modules[before]) in (nn.Linear, nn.Conv2d)):
            continue  # others may read what it overwrites
        if follows:
            found[-1].append(node)
        else:
            found.append([node])
    return found


def _given(head: fx.Node, features: fx.Node) -> bool:
    """True if the features feed only the head and the output of the network, flattened or not."""
    others = [user for user in features.users if user is not head]
    flat = [user for user in others if user.target is torch.flatten]
    return all(user.op == "output" for node in (features, *flat) for user in node.users if user not in (head, *flat))


def _tappable(nodes: list[fx.Node], modules: dict[fx.Node, nn.Module]) -> bool:
    """True if a sequence has no tap yet and computes something, not only a view of its input."""
    return all(len(node.users) == 1 for node in nodes[:-1]) and not all(isinstance(modules[n], VIEWS) for n in nodes)
