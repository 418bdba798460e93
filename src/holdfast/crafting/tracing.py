"""The graph of a network by torch.fx, and whether it can be trusted.

A trace records what one forward pass does with proxies. Random numbers, internal state and decisions that depend on
attributes are frozen in it, and ``no_grad`` or a custom backward leave no mark. All of these are looked for here.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from weakref import ref

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from holdfast.crafting.layers import Raised

_KNOWN = frozenset(vars(nn.Module())) | {"forward"}  # what every module has, and what folding checks itself
_PLAIN = (int, float, complex, str, bytes, type(None))
_MANY = 100  # items of a container whose contents are compared
_INSTANCE_NORMS = (nn.functional.instance_norm, torch.instance_norm)


def trace(root: nn.Module) -> fx.Graph | str:
    """The graph of a network, or the reason why there is none that can be trusted."""
    try:
        copy = deepcopy(root).eval()  # a forward that changes its own state must not change the model
        before = _state(copy)
        with _drawing() as drawn:
            graph = _Tracer().trace(copy)
            draws = drawn()
    except Exception as error:  # a user's code on proxies can raise anything
        return f"it cannot be traced ({type(error).__name__})"
    if any(node.op == "get_attr" and node.target.startswith("_tensor_constant") for node in graph.nodes):
        return "it makes tensors of its own in the forward pass"
    if _state(copy) != before:
        return "its forward pass changes its own state"
    if draws:
        return "its forward pass draws random numbers that a trace would freeze"
    kinds = [type(root.get_submodule(str(node.target))) for node in graph.nodes if node.op == "call_module"]
    if any(issubclass(kind, _InstanceNorm) for kind in kinds) or any(n.target in _INSTANCE_NORMS for n in graph.nodes):
        return "it has instance norm, whose gradient torch gets wrong for one sample with channels last"
    return graph


class _Tracer(fx.Tracer):
    """Keeps every kind of linear layer whole: the input of the last one is the features."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear | Raised) or super().is_leaf_module(m, module_qualified_name)


@contextmanager
def _drawing() -> Iterator[Callable[[], bool]]:
    """Tells whether the global generators were used in this context, and restores their states."""
    python, legacy = random.getstate(), np.random.get_state(legacy=False)
    with torch.random.fork_rng(devices=[]):
        begin = torch.get_rng_state()

        def drawn() -> bool:
            others = random.getstate() != python or str(np.random.get_state(legacy=False)) != str(legacy)
            return others or not torch.equal(torch.get_rng_state(), begin)

        try:
            yield drawn
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def structure(modules: list[nn.Module]) -> list[object]:
    """What a trace depends on beside attributes: the modules, their code, and the shapes and types of their tensors.

    Tensors that a user's module holds itself are constants of a trace; those of torch's layers, which training and
    reused statistics replace, are not.
    """
    users = [module for module in modules if not type(module).__module__.startswith("torch.nn")]
    held = [id(tensor) for module in users for tensor in (*module._parameters.values(), *module._buffers.values())]
    kinds = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors(modules)]
    return [[ref(module) for module in modules], [type(module).forward for module in modules], held, kinds]


def tensors(modules: list[nn.Module]) -> list[Tensor]:
    """The parameters and buffers of modules; ``parameters()`` of each would walk their trees once more."""
    held = (tensor for m in modules for tensor in (*m._parameters.values(), *m._buffers.values()))
    return [tensor for tensor in held if tensor is not None]


def attributes(modules: list[nn.Module]) -> list[object]:
    """What a user may set on modules, such as a flag, a batch norm's eps, a head's scale or a convolution's stride."""
    return [
        (name, _content(value, 3)) for module in modules for name, value in vars(module).items() if name not in _KNOWN
    ]


def _content(value: object, depth: int) -> object:
    """A value that differs if the given one does; objects of other kinds are compared by identity."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version  # inference tensors have no versions
    if isinstance(value, list | tuple | set | dict):
        if not depth or len(value) > _MANY:
            return id(value), len(value)
        return [_content(item, depth - 1) for item in (value.items() if isinstance(value, dict) else value)]
    return id(value)


def hooked(module: nn.Module) -> bool:
    """True if a module has hooks, which no trace shows."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


def _state(model: nn.Module) -> list[object]:
    """What a forward pass could change: attributes, and the versions of tensors."""
    modules = list(model.modules())
    return [*attributes(modules), *(tensor._version for tensor in tensors(modules))]


@torch.inference_mode(False)
@torch.enable_grad()
def input_gradient(logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The input gradient of a mixture of logits; the state of torch's generators is restored."""
    x = x.detach().clone().requires_grad_()
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        out = logits(x)
        mixture = out * torch.arange(out.shape[1], device=out.device).cos()
        (found,) = torch.autograd.grad(mixture.sum(), x)
    return found
