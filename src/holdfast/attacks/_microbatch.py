"""The samples that a gradient attack works on at the same time."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from holdfast.attacks._rules import State
from holdfast.contracts import Rows


@dataclass(frozen=True)
class MicroBatch:
    """The samples that an attack works on at the moment, with their positions in the call, the number of the run and
    everything that belongs to it; ``left`` is the number of steps that every one of them has at least.
    """

    ids: Tensor
    runs: Tensor
    x: Tensor
    x_adv: Tensor
    corners: tuple[Tensor, ...]
    rows: Rows
    state: State
    t: Tensor
    left: int

    @property
    def clocked(self) -> Rows:
        """The rows with the number of steps taken, for losses that change along the way."""
        return replace(self.rows, given={**self.rows.given, "step": self.t})

    def take(self, which: Tensor) -> Self:
        """Select samples by a mask."""
        corners, state = (tuple(part[which] for part in parts) for parts in (self.corners, self.state))
        ids, runs, x, x_adv, t = (part[which] for part in (self.ids, self.runs, self.x, self.x_adv, self.t))
        return type(self)(ids, runs, x, x_adv, corners, self.rows.take(which), state, t, self.left)

    def put(self, slots: Tensor, other: Self) -> Self:
        """Replace the samples in these slots, in place: the cost grows with the new samples, not with the batch."""
        for old, new in zip(self._parts, other._parts, strict=True):
            old[slots] = new
        return replace(self, rows=self.rows.put(slots, other.rows), left=min(self.left, other.left))

    def join(self, other: Self) -> Self:
        """Append samples."""
        joined = [torch.cat(pair) for pair in zip(self._parts, other._parts, strict=True)]
        ids, runs, x, x_adv, t = joined[:5]
        corners, state = joined[5 : 5 + len(self.corners)], joined[5 + len(self.corners) :]
        rows, left = self.rows.join(other.rows), min(self.left, other.left)
        return type(self)(ids, runs, x, x_adv, tuple(corners), rows, tuple(state), t, left)

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return (self.ids, self.runs, self.x, self.x_adv, self.t, *self.corners, *self.state)
