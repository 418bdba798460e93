"""The momentum iterative method."""

from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._checks import one_of
from holdfast.attacks._rules import Momentum, MovingAverage, Rule, default_step
from holdfast.contracts import Keep, Loss
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, toward_target

Form = Literal["normalized", "average"]


@dataclass(frozen=True, kw_only=True)
class MIM(LoopAttack):
    """BIM with momentum (Dong et al. 2018).

    ``form="normalized"`` is the paper's g <- decay·g + grad/mean|grad|; ``form="average"`` is the moving average
    g <- decay·g + (1 - decay)·grad of the TLA code. ``step`` defaults to 2.5·eps/steps; the paper uses eps/steps.
    ``targeted=True`` minimizes the loss of the class ``rows["target"]``, and only that class is a success.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    decay: float = 1.0
    form: Form = "normalized"
    loss: Loss = cross_entropy
    keep: Keep = "fooled"
    targeted: bool = False

    def __post_init__(self) -> None:
        one_of("form", self.form, get_args(Form))
        if self.form == "average" and not 0 <= self.decay < 1:
            raise ValueError(f'decay is {self.decay} but form="average" needs one in [0, 1); at 1 no gradient enters')
        super().__post_init__()

    @property
    def loop(self) -> Loop:
        """Steps with momentum from the clean input."""
        step = default_step(self.step, self.threat, self.steps)
        rule: Rule = Momentum(step, self.decay) if self.form == "normalized" else MovingAverage(step, self.decay)
        loss = toward_target(self.loss) if self.targeted else self.loss
        return Loop(
            threat=self.threat,
            loss=loss,
            rule=rule,
            keep=self.keep,
            start="clean",
            steps=self.steps,
            targeted=self.targeted,
        )
