"""Mixed precision training: forward passes under autocast to bfloat16, losses and weights in float32."""

from typing import cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Model, Outputs


class Mixed(nn.Module):
    """A wrapper that runs a network under autocast to bfloat16 in train mode (Micikevicius et al. 2018).

    Weights, features and logits stay float32, and so do losses. Eval mode is not affected: crafting chooses its own
    arithmetic, and evaluation uses float32. ``lowered = False`` disables autocast.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module, self.lowered = module, True
        self._kind = device.type

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        with self._autocast():
            out = cast(Model, self.module).outputs(x, layer)
        return Outputs(x, out.features.float(), out.logits.float())

    def forward(self, x: Tensor) -> Tensor:
        with self._autocast():
            logits: Tensor = self.module(x)
        return logits.float()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._kind, torch.bfloat16, enabled=self.lowered and self.training)
