"""The fast gradient sign method."""

from dataclasses import dataclass, replace
from typing import Self

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._rules import Steepest, default_step
from holdfast.contracts import Loss, Start
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, toward_target


@dataclass(frozen=True, kw_only=True)
class FGSM(LoopAttack):
    """One step of length eps in the steepest direction (Goodfellow et al. 2015).

    ``start="random"`` steps from a random point in the ball, as the training log of the TLA code does.
    ``targeted=True`` descends the loss of the class ``rows["target"]``.
    """

    threat: Threat
    loss: Loss = cross_entropy
    start: Start = "clean"
    targeted: bool = False

    @property
    def loop(self) -> Loop:
        """One step of length eps."""
        rule = Steepest(default_step(self.threat.eps, self.threat, 1))
        loss = toward_target(self.loss) if self.targeted else self.loss
        return Loop(
            threat=self.threat, loss=loss, rule=rule, keep="last", start=self.start, steps=1, targeted=self.targeted
        )

    def with_loss(self, loss: Loss, start: Start) -> Self:
        """The same attack on another loss, from another start."""
        return replace(self, loss=loss, start=start)
