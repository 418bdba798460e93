"""RayS, a hard-label attack."""

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import get_args

import torch
from torch import Tensor

from holdfast.attacks._checks import one_of
from holdfast.attacks._queries import Answer, Oracle, QueryAttack, Slots, State, column, reach, run
from holdfast.contracts import Keep, Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

_PRECISION = 1e-3  # of a bisection: the length in L2, as in the authors' code, in units of the reach


@dataclass(frozen=True, kw_only=True)
class RayS(QueryAttack):
    """Ray searching in linf with predicted labels alone (Chen and Gu 2020).

    The perturbation is a radius times a vector of signs. The attack flips the signs of one block of the flattened
    input after the other, first all of them, then halves, quarters and so on to single numbers, and keeps a flip if
    the point at the present radius stays misclassified, after which a bisection finds the new radius. Single numbers
    are flipped in turn until the queries run out. ``keep="fooled"`` stops at the first point within eps,
    ``keep="closest"`` shortens the perturbation further. There are no random numbers. The first query is x itself.
    """

    threat: Threat
    queries: int = 5000
    keep: Keep = "closest"
    norms = ("linf",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("keep", self.keep, get_args(Keep))
        if self.keep not in ("fooled", "closest"):
            raise ValueError(f'keep is {self.keep!r} but RayS follows the decision boundary; use "fooled" or "closest"')

    def search(self, oracle: Oracle, x: Tensor, rows: Rows, rng: Rng) -> Tensor:
        """The closest points found, or the first within eps."""
        return run(_Rays(self.threat, self.keep == "fooled"), oracle, x, rows)


@dataclass(frozen=True)
class _Rays:
    """The search: a query either tests a flip at the present radius or is a step of the bisection after a success."""

    threat: Threat
    stops: bool
    ahead = 1

    def begin(self, x: Tensor, rows: Rows) -> State:
        """All signs positive, and a radius that covers the box."""
        farthest, whole = reach(x, self.threat), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return {
            "best": x,
            "signs": torch.ones_like(x).flatten(1),
            "radius": farthest,
            "low": torch.zeros_like(farthest),
            "precision": farthest * _PRECISION / sqrt(x[:1].numel()),
            "bisects": whole.bool(),
            "level": whole,
            "block": whole,
        }

    def plan(self, slots: Slots, t: Tensor) -> State:
        """Nothing: every query depends on the answers before it."""
        return {}

    def propose(self, slots: Slots, t: Tensor, planned: State) -> Tensor:
        """The point on the present or the flipped ray; x itself in the first query."""
        signs = self._signs(slots).reshape(slots.x.shape)
        d = column(self._radius(slots.state), slots.x) * signs
        x_adv = (slots.x + d).clamp(self.threat.low, self.threat.high)
        return torch.where(column(t == 0, slots.x), slots.x, x_adv)

    def learn(self, slots: Slots, t: Tensor, x_adv: Tensor, answer: Answer) -> tuple[State, Tensor]:
        """Keep successful flips and halve the interval of the bisection."""
        state, reached, first = dict(slots.state), answer.reached, t == 0
        tried, bisects = self._radius(state), state["bisects"]
        better = reached & ~first
        state["best"] = torch.where(column(better, x_adv), x_adv, state["best"])
        state["signs"] = torch.where(better[:, None], self._signs(slots), state["signs"])
        state["radius"] = torch.where(better, tried, state["radius"])
        state["low"] = torch.where(bisects & ~reached, tried, torch.where(bisects, state["low"], 0))
        state["bisects"] = (bisects | better) & (state["radius"] - state["low"] > state["precision"])
        onward = ~state["bisects"] & ~first
        state["level"], state["block"] = self._next(state, slots.x[:1].numel(), onward)
        return state, reached & (first | ((tried <= self.threat.eps) & self.stops))

    def _radius(self, state: State) -> Tensor:
        return torch.where(state["bisects"], (state["low"] + state["radius"]) / 2, state["radius"])

    def _signs(self, slots: Slots) -> Tensor:
        """The signs, those of the block flipped except in a bisection, whose signs are flipped already."""
        state, size = slots.state, slots.x[:1].numel()
        width = _width(size, state["level"])
        start = state["block"] * width
        place = torch.arange(size, device=start.device)
        inside = (place >= start[:, None]) & (place < (start + width)[:, None]) & ~state["bisects"][:, None]
        return torch.where(inside, -state["signs"], state["signs"])

    def _next(self, state: State, size: int, onward: Tensor) -> tuple[Tensor, Tensor]:
        """Level and block after a test or a bisection has ended."""
        level, block = state["level"], state["block"]
        last = onward & ((block + 1) * _width(size, level) >= size)
        deeper = (level + 1).clamp_max(ceil(log2(size)))
        return torch.where(last, deeper, level), torch.where(last, 0, block + onward)


def _width(size: int, level: Tensor) -> Tensor:
    """The length of the blocks of each level: size / 2^level, rounded up."""
    blocks: Tensor = 2**level
    return (size + blocks - 1) // blocks
