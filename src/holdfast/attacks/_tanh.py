"""The change of variables of Carlini and Wagner 2017, which keeps inputs in the box without clipping."""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from holdfast.geometry import Threat

_SMALLER = 1 - 1e-6  # at the ends of the box the variable would be infinite


@dataclass(frozen=True)
class Tanh:
    """x = low + (high - low)·(tanh w + 1)/2; without a box w is x itself."""

    low: float
    high: float

    @staticmethod
    def of(threat: Threat, attack: str) -> "Tanh":
        """The variables for a threat; a box with one end is refused."""
        if isfinite(threat.low) != isfinite(threat.high):
            raise ValueError(
                f"the box [{threat.low}, {threat.high}] has one end but the change of variables of {attack} needs both "
                "or none; give both, or use fmn"
            )
        return Tanh(threat.low, threat.high)

    @property
    def bounded(self) -> bool:
        """True if there is a box."""
        return isfinite(self.low)

    def inverse(self, x: Tensor) -> Tensor:
        """The variables w of inputs."""
        if not self.bounded:
            return x.clone()
        return torch.atanh(_SMALLER * (2 * (x - self.low) / (self.high - self.low) - 1))

    def __call__(self, w: Tensor) -> Tensor:
        """The inputs of variables."""
        return self.low + (self.high - self.low) * (torch.tanh(w) + 1) / 2 if self.bounded else w

    def slope(self, w: Tensor) -> Tensor | float:
        """The derivative of x with respect to w."""
        return (self.high - self.low) / 2 * (1 - torch.tanh(w).square()) if self.bounded else 1.0
