"""Carlini and Wagner's attack in l2."""

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

_STALLED = 0.9999  # a search stops once a tenth of its steps reduces the objective by less


class _State(NamedTuple):
    x_adv: Tensor
    w: Tensor
    mean: Tensor
    square: Tensor
    t: Tensor
    c: Tensor
    lower: Tensor
    upper: Tensor
    found: Tensor
    objective: Tensor
    search: Tensor


@dataclass(frozen=True, kw_only=True)
class CWL2(ClosestAttack[_State]):
    """The l2 attack of Carlini and Wagner 2017.

    It minimizes |d|² + c·max(kappa - logit difference, 0) by Adam with learning rate ``rate``, over variables w with
    x + d = (tanh w + 1)/2 in the box, or over d itself where there is no box. ``searches`` runs of ``steps`` steps
    search for the smallest sufficient c by bisection, from ``c`` on; the paper takes 10,000 steps. A run goes on from
    where the last one ended, in the paper from x: that is 6 to 14 percent closer after nine runs of 100 steps. It ends
    early if a tenth of it does not reduce the objective. All points evaluated count, not only the last. Points beyond
    a finite eps are scaled back to it before the model sees them. With ``targeted`` the rows hold the class to reach
    as ``target``.
    """

    threat: Threat
    steps: int = 1000
    searches: int = 9
    c: float = 1e-3
    rate: float = 0.01
    kappa: float = 0.0
    targeted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm.name != "l2":
            raise ValueError(
                f"cw_l2 minimizes the l2 norm but the threat is in {self.threat.norm.name}; use fmn for other norms, "
                "or cw_linf_original for linf"
            )
        _ = self._variables
        check_range([("c", self.c), ("rate", self.rate)])
        if self.searches < 1 or not 0 <= self.kappa < inf:
            raise ValueError(
                f"searches is {self.searches} and kappa {self.kappa} but there must be at least one search, and kappa "
                "must be finite and not negative"
            )

    @property
    def evaluations(self) -> int:
        """About how many points a sample needs."""
        return self.searches * self.steps

    @property
    def _variables(self) -> Tanh:
        return Tanh.of(self.threat, "cw_l2")

    def loss(self, out: Outputs, rows: Rows) -> Tensor:
        """The logit difference, capped at kappa."""
        return super().loss(out, rows).clamp_max(self.kappa)

    def begin(self, x: Tensor) -> _State:
        """The first run."""
        zero = torch.zeros_like(x)
        number = x.new_zeros(len(x))
        count = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return _State(
            x_adv=x.clone(),
            w=self._variables.inverse(x),
            mean=zero,
            square=zero,
            t=count,
            c=number + self.c,
            lower=number,
            upper=number + inf,
            found=count > 0,
            objective=number + inf,
            search=count,
        )

    def move(self, seen: Seen, state: _State) -> tuple[_State, Tensor]:
        """A step of Adam, or the start of the next run."""
        d = self._variables(state.w) - seen.x
        objective = d.flatten(1).square().sum(1) + state.c * (self.kappa - seen.loss)
        checked = state.t % max(1, self.steps // 10) == 0
        ended = (checked & (objective > _STALLED * state.objective)) | (state.t + 1 >= self.steps)
        state = state._replace(
            found=state.found | seen.reached, objective=torch.where(checked, objective, state.objective)
        )
        state = self._moved(seen, state, d)
        if ended.any():
            pairs = zip(self._restarted(seen.x, state), state, strict=True)
            state = _State(*(torch.where(column(ended, old), new, old) for new, old in pairs))
        return state, state.search >= self.searches

    def _moved(self, seen: Seen, state: _State, d: Tensor) -> _State:
        variables = self._variables
        grad = (column(state.c, d) * self._through(seen.grad, d) - 2 * d) * variables.slope(state.w)
        point = Point(seen.x, state.w, grad, seen.loss, state.t, self.threat)
        w, (mean, square) = Adam(self.rate, least=1e-8).unprojected(point, (state.mean, state.square))
        x_adv = self.threat.project(variables(w), seen.x)
        return state._replace(x_adv=x_adv, w=w, mean=mean, square=square, t=state.t + 1)

    def _through(self, grad: Tensor, d: Tensor) -> Tensor:
        """The gradient with respect to d of what the model says of d, scaled back to eps where it is longer."""
        length = column(self.threat.norm.length(d), d)
        unit = d / length.clamp_min(torch.finfo(d.dtype).tiny)
        along = column((grad * unit).flatten(1).sum(1), d)
        return torch.where(length > self.threat.eps, self.threat.eps / length * (grad - along * unit), grad)

    def _restarted(self, x: Tensor, state: _State) -> _State:
        """The next run, with a smaller c after a success and a larger one otherwise, from where the last one ended."""
        upper = torch.where(state.found, torch.minimum(state.upper, state.c), state.upper)
        lower = torch.where(state.found, state.lower, torch.maximum(state.lower, state.c))
        c = torch.where(upper < inf, (lower + upper) / 2, 10 * state.c)
        begun = self.begin(x)._replace(c=c, lower=lower, upper=upper, search=state.search + 1)
        return begun._replace(x_adv=state.x_adv, w=state.w)
