"""What attacks see of a model: frozen, in eval mode, and left exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from holdfast.contracts import Model
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@contextmanager
def frozen(model: nn.Module, rng: Rng) -> Iterator[Model]:
    """The model with open outputs, in eval mode and without parameter gradients, for the time of the context.

    Modes and gradient flags are put back also after an exception. Draws that a randomised model makes from torch's
    own generators come from ``rng``, and those generators are put back too.
    """
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p, _ in wanted if p.device.type == "cuda"})
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(rng.fork("model").seed)
            yield adapt(model)
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
