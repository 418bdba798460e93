"""Intervals, and how far rounding in float32 moves a result."""

from typing import NamedTuple

import torch
from torch import Tensor

_UNIT = 2.0**-24  # of float32
_WIDER = 1.01  # covers the rounding errors of the bounds themselves, see the overview of the folder
_LEAST = 1e-37  # products below it may underflow
_MOST = 3e38  # sums above it may overflow


def rounding(terms: float, size: Tensor) -> Tensor:
    """Bound the error of a float32 result with this number of rounding errors, each relative to ``size`` at most.

    It is infinite where the result may overflow.
    """
    error = size * (_WIDER * terms * _UNIT / (1 - terms * _UNIT)) + _LEAST
    return torch.where(size > _MOST, torch.inf, error)


class Interval(NamedTuple):
    """Lower and upper bounds, (b, ...)."""

    low: Tensor
    high: Tensor

    @property
    def center(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Tensor:
        return (self.high - self.low) / 2

    @property
    def size(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def tightened(self, other: "Interval") -> "Interval":
        """The intersection; where rounding makes it empty, this interval."""
        low, high = torch.maximum(self.low, other.low), torch.minimum(self.high, other.high)
        empty = low > high
        return Interval(torch.where(empty, self.low, low), torch.where(empty, self.high, high))
