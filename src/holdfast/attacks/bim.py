"""The basic iterative method."""

from dataclasses import dataclass

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._rules import Steepest, default_step
from holdfast.contracts import Keep, Loss
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy


@dataclass(frozen=True, kw_only=True)
class BIM(LoopAttack):
    """Steepest ascent from the clean input, projected onto the threat after each step (Kurakin et al. 2017).

    ``step`` defaults to 2.5·eps/steps.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    loss: Loss = cross_entropy
    keep: Keep = "fooled"

    @property
    def loop(self) -> Loop:
        """Steepest steps from the clean input."""
        rule = Steepest(default_step(self.step, self.threat, self.steps))
        return Loop(threat=self.threat, loss=self.loss, rule=rule, keep=self.keep, start="clean", steps=self.steps)
