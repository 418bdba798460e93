"""The precision of training: bfloat16 for as long as losses are finite, if it is asked for."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from holdfast.contracts import Method, Terms
from holdfast.crafting.arithmetic import arithmetic, chosen
from holdfast.models.mixed import Mixed
from holdfast.recipes.train import TrainConfig
from holdfast.training.generators import generators, set_generators


def check_precision(config: TrainConfig, device: torch.device) -> None:
    """Refuse bfloat16 where a trial of it died, as crafting does."""
    if config.precision == "bf16-mixed":
        with arithmetic("bfloat16"):
            chosen(device)


class Precision:
    """The network as methods are to see it, and the step from which bfloat16 was given up."""

    def __init__(self, config: TrainConfig, net: nn.Module, method: Method, device: torch.device) -> None:
        self.mixed = Mixed(net, device) if config.precision == "bf16-mixed" else None
        self.model: nn.Module = net if self.mixed is None else self.mixed
        self.float32_from: int | None = None
        self._remembered = [net, method] if isinstance(method, nn.Module) else [net]

    def fall_back(self, step: int | None) -> None:
        """Compute in float32 from this step on; None: not yet."""
        self.float32_from = step
        if self.mixed is not None:
            self.mixed.lowered = step is None

    def terms(self, step: int, compute: Callable[[], Terms]) -> Terms:
        """What a method computes; again in float32, as if for the first time, if the loss is not finite."""
        if self.mixed is None or not self.mixed.lowered:
            return compute()
        states, buffers = generators(), [b for module in self._remembered for b in module.buffers()]
        before = [buffer.clone() for buffer in buffers]
        terms = compute()
        if torch.isfinite(terms.total):
            return terms
        set_generators(states)
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        self.fall_back(step)
        again = compute()
        return replace(again, cost=terms.cost + again.cost)
