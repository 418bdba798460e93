"""The cross entropy of a training pass, with the margin of the hypersphere head that computes the logits, if any."""

from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Outputs, Rows
from holdfast.crafting.view import frozen, unwrapped
from holdfast.losses.classification import cross_entropy
from holdfast.models.classifier import adapt, forward_hooks
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

_PROBE = 8  # samples on which the output of the head is compared with the logits, once per model
_cache: WeakKeyDictionary[nn.Module, ReferenceType[Hypersphere]] = WeakKeyDictionary()


def mean_cross_entropy(model: nn.Module, out: Outputs, rows: Rows, smoothing: float) -> Tensor:
    """The mean cross entropy, with the margin of the hypersphere head if the model ends in one."""
    head = hypersphere_of(model, out)
    margin = 0.0 if head is None else head.scale * head.margin
    return cross_entropy(out, rows, smoothing=smoothing, margin=margin).mean()


def input_gradient(model: nn.Module, batch: Batch, x: Tensor, smoothing: float) -> tuple[Outputs, Tensor, Tensor]:
    """A forward pass at x, the cross entropy of each sample, and its input gradient, which can be differentiated."""
    x = x.detach().requires_grad_()
    out = adapt(model).outputs(x)
    loss = cross_entropy(out, batch.rows(), smoothing=smoothing)
    # sum, not mean: a sample's gradient must not depend on the batch size
    (gradient,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
    return out, loss, gradient


def hypersphere_of(model: nn.Module, out: Outputs) -> Hypersphere | None:
    """The hypersphere head whose output is the logits, or None if the model has no such layer.

    A model with a hypersphere layer elsewhere is refused. The check runs a few samples of ``out.x`` through the model
    in eval mode and compares values, because wrappers may copy the output of the head; its result is cached.
    """
    model = unwrapped(model)
    heads = [module for module in model.modules() if isinstance(module, Hypersphere)]
    if not heads:
        return None
    cached = _cache.get(model)
    head = None if cached is None else cached()
    if head not in heads:  # not cached yet, or the head was replaced
        head = _find(model, heads, out.x[:_PROBE].detach())
        _cache[model] = ref(head)
    return head


@torch.no_grad()
def _find(model: nn.Module, heads: list[Hypersphere], x: Tensor) -> Hypersphere:
    outputs: list[tuple[Hypersphere, Tensor]] = []

    def record(head: Hypersphere, _args: object, _kwargs: object, output: Tensor) -> None:
        outputs.append((head, output.clone()))  # cloned, because the next layer may work in place

    with forward_hooks(heads, record), frozen(model, Rng(0)) as view:
        logits = view.outputs(x).logits
    for head, output in reversed(outputs):
        if torch.equal(output.to(logits).nan_to_num(), logits.nan_to_num()):
            return head
    raise ValueError(
        f"the model has a hypersphere layer with {heads[-1].out_features} outputs, but its {logits.shape[1]} logits do "
        "not come from it; its margin and scale are those of logits, so put it in the place of the last layer"
    )
