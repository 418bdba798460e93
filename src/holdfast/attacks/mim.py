"""The momentum iterative method."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import Tensor, nn

from holdfast.attacks._ascent import Ascent, Keep, one_of
from holdfast.attacks._rules import Momentum, MovingAverage, Rule, default_step, scaled
from holdfast.contracts import Loss, Rows, Watch
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng

Form = Literal["normalized", "average"]


@dataclass(frozen=True, kw_only=True)
class MIM:
    """BIM with momentum (Dong et al. 2018).

    ``form="normalized"`` is Dong's g <- decay·g + grad/mean|grad|; ``form="average"`` is the plain moving average
    g <- decay·g + (1 - decay)·grad of the TLA code. ``step`` defaults to 2.5·eps/steps; Dong uses eps/steps.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    decay: float = 1.0
    form: Form = "normalized"
    loss: Loss = cross_entropy
    keep: Keep = "fooled"

    def __post_init__(self) -> None:
        one_of("form", self.form, get_args(Form))
        if self.form == "average" and not 0 <= self.decay < 1:
            raise ValueError(f'decay is {self.decay} but form="average" needs one in [0, 1); at 1 no gradient enters')
        _ = self.plan  # a bad combination is refused where it is made

    @property
    def plan(self) -> Ascent:
        """The loop this attack runs."""
        step = default_step(self.step, self.threat, self.steps)
        rule: Rule = Momentum(step, self.decay) if self.form == "normalized" else MovingAverage(step, self.decay)
        return Ascent(threat=self.threat, loss=self.loss, rule=rule, keep=self.keep, start="clean", steps=self.steps)

    def at(self, eps: float) -> "MIM":
        """The same attack at another eps, with the step size in proportion."""
        return replace(self, threat=replace(self.threat, eps=eps), step=scaled(self.step, self.threat, eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.plan(model, x, y, rng=rng, watch=watch)
