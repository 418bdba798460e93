"""Fast minimum norm."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.attacks._closest import ClosestAttack, Seen, annealed, check_range, column, direction
from holdfast.geometry import Threat

_DUAL = {"linf": 1.0, "l2": 2.0, "l1": inf}


class _State(NamedTuple):
    x_adv: Tensor
    radius: Tensor
    largest: Tensor
    t: Tensor


@dataclass(frozen=True, kw_only=True)
class FMN(ClosestAttack[_State]):
    """The fast minimum-norm attack of Pintor et al. 2021, for the shortest perturbation in l0, l1, l2 or linf.

    Each step follows the gradient of the logit difference and projects onto a ball. Until the first success the radius
    is the distance at which the linearized model changes its decision and a share ``gamma`` more; then it shrinks by
    ``gamma`` after a success and grows by it otherwise (by at least one pixel in l0). ``gamma`` falls to 0.001 and the
    length of a step from ``alpha`` to a hundredth of it. In l2, shorter perturbations are lengthened to the
    radius. With ``targeted`` the rows hold the class to reach as ``target``.
    """

    threat: Threat
    steps: int = 100
    alpha: float = 1.0
    gamma: float = 0.05
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm.name not in (*_DUAL, "l0"):
            raise ValueError(f"fmn has no form for the norm {self.threat.norm.name}; use linf, l2, l1 or l0")
        check_range([("alpha", self.alpha)])
        check_range([("gamma", self.gamma)], below=1)

    def begin(self, x: Tensor) -> _State:
        """x with the first radius, and the largest radius that box and threat allow."""
        farthest = torch.maximum(x - self.threat.low, self.threat.high - x)
        largest = self.threat.norm.length(farthest).clamp_max(self.threat.eps)
        first = 1.0 if self.threat.norm.name == "l0" else inf
        t = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return _State(x.clone(), torch.full_like(largest, first), largest, t)

    def move(self, seen: Seen, state: _State) -> tuple[_State, Tensor]:
        """A step along the gradient, projected onto the ball of the new radius and the box."""
        alpha = annealed(self.alpha, self.alpha / 100, state.t, self.steps, seen.x)
        gamma = annealed(self.gamma, 0.001, state.t, self.steps, seen.x)
        radius = self._pixels(seen, state, gamma) if self.threat.norm.name == "l0" else self._length(seen, state, gamma)
        radius = torch.minimum(radius, state.largest)
        d = seen.x_adv - seen.x + column(alpha, seen.x) * direction(seen, state.t)
        if self.threat.norm.name == "l2":  # as in DDN, which finds closer points; a first radius may have no limit
            longer = (radius / self.threat.norm.length(d).clamp_min(torch.finfo(d.dtype).tiny)).clamp_min(1)
            d = d * column(torch.where((seen.shortest < inf) | (state.largest < inf), longer, 1), d)
        d = self.threat.norm.project(d, radius, self.threat.low - seen.x, self.threat.high - seen.x)
        x_adv = self.threat.project(seen.x + d, seen.x)  # where |x| is large, x + d rounds
        return _State(x_adv, radius, state.largest, state.t + 1), state.t >= self.steps

    def _length(self, seen: Seen, state: _State, gamma: Tensor) -> Tensor:
        dual = torch.linalg.vector_norm(seen.grad.flatten(1), _DUAL[self.threat.norm.name], dim=1)
        linear = seen.distance + seen.loss.abs() / dual.clamp_min(torch.finfo(dual.dtype).tiny)
        # beyond the linearized boundary, not onto it, where the paper stays if the model is linear
        grown = torch.where(seen.shortest < inf, state.radius, linear) * (1 + gamma)
        return torch.where(seen.reached, torch.minimum(state.radius * (1 - gamma), seen.shortest), grown)

    def _pixels(self, seen: Seen, state: _State, gamma: Tensor) -> Tensor:
        fewer = torch.minimum(state.radius - 1, (state.radius * (1 - gamma)).floor())
        more = torch.maximum(state.radius + 1, (state.radius * (1 + gamma)).floor())
        return torch.where(seen.reached, torch.minimum(fewer, seen.shortest), more).clamp_min(0)
