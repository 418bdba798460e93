"""Which hypersphere head makes the logits of a model: its margin and scale are those of the losses."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from holdfast.contracts import Outputs
from holdfast.crafting.view import frozen, unwrapped
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

_FEW = 8  # samples on which the outputs of a head must be the logits, once for each model
_known: WeakKeyDictionary[nn.Module, ReferenceType[Hypersphere]] = WeakKeyDictionary()


def hypersphere_of(model: nn.Module, out: Outputs) -> Hypersphere | None:
    """The hypersphere head that made the logits of a pass, None if the model has none; one that did not is refused.

    What a model does is asked once, on a few samples in eval mode: wrappers may hand on copies of what a head gave.
    """
    model = unwrapped(model)
    heads = [module for module in model.modules() if isinstance(module, Hypersphere)]
    if not heads:
        return None
    known = _known.get(model)
    head = None if known is None else known()
    if head not in heads:  # not asked yet, or another one was put in its place
        head = _maker(model, heads, out.x[:_FEW].detach())
        _known[model] = ref(head)
    return head


@torch.no_grad()
def _maker(model: nn.Module, heads: list[Hypersphere], x: Tensor) -> Hypersphere:
    with _noted(heads) as gave, frozen(model, Rng(0)) as view:
        logits = view.outputs(x).logits
    for head, given in reversed(gave):
        if torch.equal(given.to(logits).nan_to_num(), logits.nan_to_num()):
            return head
    raise ValueError(
        f"the model has a hypersphere layer with {heads[-1].out_features} outputs, but its {logits.shape[1]} logits do "
        "not come from it; its margin and scale are those of logits, so put it in the place of the last layer"
    )


@contextmanager
def _noted(heads: list[Hypersphere]) -> Iterator[list[tuple[Hypersphere, Tensor]]]:
    """What the heads give in this context, in its order; copied, as the next layer may work in place."""
    gave: list[tuple[Hypersphere, Tensor]] = []
    handles = [head.register_forward_hook(lambda head, _, out: gave.append((head, out.clone()))) for head in heads]
    try:
        yield gave
    finally:
        for handle in handles:
            handle.remove()
