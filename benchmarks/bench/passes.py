"""What a training step is made of: its passes counted by kind, and what one pass of each kind costs here."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.training import Stepper
from holdfast import PGD, Batch, Rng, Rows, Threat, adapt
from holdfast.contracts import Method
from holdfast.crafting.view import frozen
from holdfast.losses.classification import cross_entropy
from holdfast.methods.plain import Plain

LOOK, CRAFT, TRAIN, TWICE = "look", "craft", "train", "twice"
"""A pass without gradients; there and back to the input; there and back to the weights; and there, back to the input,
and back through both to the weights."""


def counted(model: nn.Module, method: Method, batch: Batch) -> Counter[str]:
    """The passes of one step by kind, in samples of the batch; they are seen at the door of the encoder."""
    counts: Counter[str] = Counter()
    Plain()(model.train(), batch, progress=1.0, rng=Rng(0))  # a model is asked for its head once, in its first step

    def note(encoder: nn.Module, args: tuple[Tensor, ...]) -> None:
        counts[_kind(encoder, args[0])] += len(args[0])

    handle = model.encoder.register_forward_pre_hook(note)
    try:
        method(model.train(), batch, progress=1.0, rng=Rng(0))
    finally:
        handle.remove()
    return Counter({kind: many / len(batch) for kind, many in counts.items()})


def _kind(encoder: nn.Module, x: Tensor) -> str:
    if not torch.is_grad_enabled():
        return LOOK
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        return CRAFT
    return TWICE if x.requires_grad else TRAIN


def units(make: Callable[[], nn.Module], batch: Batch, threat: Threat, steps: int) -> dict[str, Callable[[], object]]:
    """One call per kind of pass, ``steps`` passes for crafting; and the update of the weights alone."""
    model, x, rows = make(), batch.x, Rows(batch.y, batch.index)
    attack = PGD(threat=threat, steps=steps, step=2.5 * threat.eps / steps, keep="last")
    stepper = Stepper(make(), Plain(), batch)
    stepper()

    def look() -> None:
        with torch.no_grad(), frozen(model, Rng(0)) as view:
            view.outputs(x)

    def train() -> None:
        cross_entropy(adapt(model.train()).outputs(x), rows).mean().backward()

    def twice() -> None:
        here = x.clone().requires_grad_()
        loss = cross_entropy(adapt(model.train()).outputs(here), rows)
        (gradient,) = torch.autograd.grad(loss.sum(), here, create_graph=True)
        (loss.mean() + gradient.square().sum()).backward()

    def craft() -> None:
        attack(model, x, rows, rng=Rng(0))

    return {LOOK: look, CRAFT: craft, TRAIN: train, TWICE: twice, "update": stepper.optimizer.step}


def predicted(counts: Counter[str], seconds: dict[str, float], steps: int) -> float:
    """Seconds of a step: each pass at its price, and one update."""
    price = {**seconds, CRAFT: seconds[CRAFT] / steps}
    return price["update"] + sum(many * price[kind] for kind, many in counts.items())


def rows_of(counts: Counter[str]) -> dict[str, Any]:
    """The counts as columns of a table."""
    return {kind: round(counts[kind], 2) for kind in (LOOK, CRAFT, TRAIN, TWICE)}
