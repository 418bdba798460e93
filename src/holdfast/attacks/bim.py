"""The basic iterative method."""

from dataclasses import dataclass

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._rules import Steepest, default_step
from holdfast.contracts import Keep, Loss
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, toward_target


@dataclass(frozen=True, kw_only=True)
class BIM(LoopAttack):
    """Steepest ascent from the clean input, projected onto the threat after each step (Kurakin et al. 2017).

    ``step`` defaults to 2.5·eps/steps. ``targeted=True`` minimizes the loss of the class ``rows["target"]``, and only
    that class is a success.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    loss: Loss = cross_entropy
    keep: Keep = "fooled"
    targeted: bool = False

    @property
    def loop(self) -> Loop:
        """Steepest steps from the clean input."""
        rule = Steepest(default_step(self.step, self.threat, self.steps))
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
