"""Training passes in bfloat16 where torch holds that sound; all else in float32."""

from typing import cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Model, Outputs


class Mixed(nn.Module):
    """A network whose passes in train mode run under torch's autocast to bfloat16 (Micikevicius et al. 2018).

    Weights, features and logits are float32, so losses are computed in float32 too. Eval mode is left alone: crafting
    chooses its own arithmetic and judging is float32. ``lowered = False`` switches it off.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module, self.lowered = module, True
        self._kind = device.type

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and logits of one pass."""
        with self._autocast():
            out = cast(Model, self.module).outputs(x, layer)
        return Outputs(x, out.features.float(), out.logits.float())

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        with self._autocast():
            logits: Tensor = self.module(x)
        return logits.float()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._kind, torch.bfloat16, enabled=self.lowered and self.training)
