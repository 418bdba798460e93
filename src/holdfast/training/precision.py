"""Mixed-precision training in bfloat16, with a fallback to float32 when a loss is not finite."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from holdfast.contracts import Method, Terms
from holdfast.crafting.arithmetic import arithmetic, chosen
from holdfast.models.classifier import adapt
from holdfast.models.mixed import Mixed
from holdfast.recipes.tables.train import TrainConfig
from holdfast.training.checkpoint import generators, set_generators


def check_precision(config: TrainConfig, device: torch.device) -> None:
    """Refuse bfloat16 on processors that cannot compute it, as crafting does."""
    if config.precision == "bf16-mixed":
        with arithmetic("bfloat16"):
            chosen(device)


class Precision:
    """The network in the precision of training, and the step from which it computes in float32 again."""

    def __init__(self, config: TrainConfig, net: nn.Module, method: Method, device: torch.device) -> None:
        adapted = cast(nn.Module, adapt(net))
        self.mixed = Mixed(adapted, device) if config.precision == "bf16-mixed" else None
        self.model: nn.Module = adapted if self.mixed is None else self.mixed
        self.float32_from: int | None = None
        self._modules = [net, method] if isinstance(method, nn.Module) else [net]

    def fall_back(self, step: int | None) -> None:
        """Compute in float32 from this step on; None: stay in bfloat16."""
        self.float32_from = step
        if self.mixed is not None:
            self.mixed.lowered = step is None

    def terms(self, step: int, compute: Callable[[], Terms]) -> Terms:
        """The result of ``compute``; if its loss is not finite, everything is reset and computed in float32."""
        if self.mixed is None or not self.mixed.lowered:
            return compute()
        states, buffers = generators(), [b for module in self._modules for b in module.buffers()]
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
