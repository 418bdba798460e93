"""Carlini and Wagner's attack in linf, as in their paper."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.attacks._closest import ClosestAttack, Seen, check_range, column
from holdfast.attacks._rules import Adam, Point
from holdfast.attacks._tanh import Tanh
from holdfast.contracts import Outputs, Rows
from holdfast.geometry import Threat

_SMALLEST = 1 / 256  # the search ends once tau is below this share of the box
_SOLVED = 1e-4  # a success whose penalty is below this times c counts as within tau


class _State(NamedTuple):
    x_adv: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    t: Tensor
    c: Tensor
    tau: Tensor


@dataclass(frozen=True, kw_only=True)
class CWLinfOriginal(ClosestAttack[_State]):
    """The linf attack of Carlini and Wagner 2017, for the shortest perturbation; ``cw_linf`` is PGD on their loss.

    It minimizes sum max(|d_i| - tau, 0) + c·max(-logit difference, 0) by Adam with learning rate ``rate``, over
    variables w with x + d = (tanh w + 1)/2 in the box, or over d itself where there is no box. Once a perturbation
    within tau succeeds, tau becomes ``shrink`` times its length; after ``steps`` steps without, c is doubled, from
    ``c`` up to ``largest_c``. Either way the search goes on from where it is. Coordinates beyond a finite eps are
    clipped before the model sees them. With ``targeted`` the rows hold the class to reach as ``target``.
    """

    threat: Threat
    steps: int = 1000
    shrink: float = 0.9
    c: float = 1e-5
    largest_c: float = 20.0
    rate: float = 5e-3
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm.name != "linf":
            raise ValueError(
                f"cw_linf_original minimizes the linf norm but the threat is in {self.threat.norm.name}; "
                "use fmn for other norms, or cw_l2 for l2"
            )
        _ = self._variables
        check_range([("c", self.c), ("largest_c", self.largest_c), ("rate", self.rate)])
        check_range([("shrink", self.shrink)], below=1)

    @property
    def _variables(self) -> Tanh:
        return Tanh.of(self.threat, "cw_linf_original")

    def loss(self, out: Outputs, rows: Rows) -> Tensor:
        """The logit difference, capped at zero."""
        return super().loss(out, rows).clamp_max(0)

    def begin(self, x: Tensor) -> _State:
        """Start at x, with tau as large as box and threat allow."""
        zero, number = torch.zeros_like(x), x.new_zeros(len(x))
        tau = number + min(self.threat.eps, self.threat.high - self.threat.low)
        t = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return _State(x.clone(), self._variables.inverse(x), zero, zero, t, number + self.c, tau)

    def move(self, seen: Seen, state: _State) -> tuple[_State, Tensor]:
        """A step of Adam, after a change of tau or c where one is due."""
        d = self._variables(state.w) - seen.x
        excess = (d.abs() - column(state.tau, d)).clamp_min(0).flatten(1).sum(1)
        solved = seen.reached & (excess < _SOLVED * state.c)
        failed = (state.t >= self.steps) & ~solved
        tau = torch.where(solved, self.shrink * torch.minimum(state.tau, seen.distance), state.tau)
        c = torch.where(failed, 2 * state.c, state.c)
        state = self._moved(seen, self._reset(state, solved | failed)._replace(c=c, tau=tau), d)
        width = self.threat.high - self.threat.low
        return state, (c >= self.largest_c) | ((tau <= _SMALLEST * width) & (width < inf))

    def _reset(self, state: _State, which: Tensor) -> _State:
        """The state with Adam started anew."""
        keep = column(~which, state.w)
        return state._replace(mean=state.mean * keep, square=state.square * keep, t=torch.where(which, 0, state.t))

    def _moved(self, seen: Seen, state: _State, d: Tensor) -> _State:
        variables = self._variables
        outside = torch.where(d.abs() > column(state.tau, d), d.sign(), 0.0)
        seen_by_model = torch.where(d.abs() <= self.threat.eps, seen.grad, 0.0)
        grad = (column(state.c, d) * seen_by_model - outside) * variables.slope(state.w)
        point = Point(seen.x, state.w, grad, seen.loss, state.t, self.threat)
        w, (mean, square) = Adam(self.rate, least=1e-8).unprojected(point, (state.mean, state.square))
        x_adv = self.threat.project(variables(w), seen.x)
        return state._replace(x_adv=x_adv, w=w, mean=mean, square=square, t=state.t + 1)
