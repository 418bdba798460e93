"""Decoupled direction and norm."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.attacks._closest import ClosestAttack, Seen, annealed, check_range, column, direction
from holdfast.contracts import Outputs, Rows
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, targeted_cross_entropy


class _State(NamedTuple):
    x_adv: Tensor
    radius: Tensor
    largest: Tensor
    t: Tensor


@dataclass(frozen=True, kw_only=True)
class DDN(ClosestAttack[_State]):
    """The decoupled direction and norm attack of Rony et al. 2019, for the shortest perturbation in l2.

    Each step follows the gradient of the cross entropy and then rescales the perturbation to a radius that shrinks by
    ``gamma`` after a success and grows by it otherwise. The first radius is ``radius``, and the length of a step falls
    from ``alpha`` to a hundredth of it. The paper rounds inputs to the 256 ``levels`` of 8-bit images, which lengthens
    perturbations. The default, None, does not, as no other attack here does; give 256 if only images that can be stored
    in 8 bits count. With ``targeted`` the rows hold the class to reach as ``target``.
    """

    threat: Threat
    steps: int = 100
    gamma: float = 0.05
    alpha: float = 1.0
    radius: float = 1.0
    levels: int | None = None
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm.name != "l2":
            raise ValueError(
                f"ddn rescales perturbations in l2 but the threat is in {self.threat.norm.name}; "
                "use fmn for other norms"
            )
        check_range([("alpha", self.alpha), ("radius", self.radius)])
        check_range([("gamma", self.gamma)], below=1)
        if self.levels is not None and (self.levels < 2 or self._width == torch.inf):
            raise ValueError(
                f"levels is {self.levels} and the box [{self.threat.low}, {self.threat.high}] but rounding needs at "
                "least 2 levels and a finite box; leave levels out"
            )

    @property
    def _width(self) -> float:
        return self.threat.high - self.threat.low

    def begin(self, x: Tensor) -> _State:
        """x with the first radius, and the largest radius that box and threat allow."""
        farthest = torch.maximum(x - self.threat.low, self.threat.high - x)
        largest = self.threat.norm.length(farthest).clamp_max(self.threat.eps)
        t = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return _State(x.clone(), torch.full_like(largest, self.radius), largest, t)

    def loss(self, out: Outputs, rows: Rows) -> Tensor:
        """The cross entropy."""
        return targeted_cross_entropy(out, rows) if self.targeted else cross_entropy(out, rows)

    def move(self, seen: Seen, state: _State) -> tuple[_State, Tensor]:
        """A step along the gradient, rescaled to the new radius."""
        alpha = annealed(self.alpha, self.alpha / 100, state.t, self.steps, seen.x)
        d = seen.x_adv - seen.x + column(alpha, seen.x) * direction(seen, state.t)
        radius = state.radius * torch.where(seen.reached, 1 - self.gamma, 1 + self.gamma)
        radius = torch.minimum(radius, state.largest)
        unit = functional.normalize(d.flatten(1), dim=1).reshape(d.shape)
        x_adv = self.threat.project(seen.x + column(radius, d) * unit, seen.x)
        if self.levels is not None:
            x_adv = self._rounded(x_adv, seen.x, self.levels)
        return _State(x_adv, radius, state.largest, state.t + 1), state.t >= self.steps

    def _rounded(self, x_adv: Tensor, x: Tensor, levels: int) -> Tensor:
        """The nearest level of each coordinate, or the next one toward x where the nearest ones leave the threat."""
        scale, low = (levels - 1) / self._width, self.threat.low
        level = (x_adv - low) * scale
        nearest = low + level.round() / scale
        toward = low + torch.where(x_adv > x, level.floor(), level.ceil()) / scale
        point = torch.where(column(self.threat.contains(nearest, x), x), nearest, toward)
        return self.threat.project(point, x)
