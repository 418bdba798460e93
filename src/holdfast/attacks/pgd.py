"""Projected gradient descent on the negative loss."""

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._checks import one_of
from holdfast.attacks._rules import Adam, Rule, Steepest, default_step
from holdfast.contracts import Keep, Loss, Start
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, toward_target

Steps = Literal["steepest", "adam"]


@dataclass(frozen=True, kw_only=True)
class PGD(LoopAttack):
    """Steepest ascent from a random start, projected onto the threat after each step (Madry et al. 2018), in any norm.

    ``step`` defaults to 2.5·eps/steps. ``restarts`` attack the samples that are not yet misclassified from a new start.
    ``keep="fooled"`` stops a sample at its first misclassified iterate; training uses ``keep="last"``. ``start="near"``
    is the start of TRADES, Gaussian noise of 0.001. ``rule="adam"`` takes steps of Adam with learning rate ``step``, as
    the code of LLR does. ``targeted=True`` minimizes the loss of the class ``rows["target"]``, and only that class is a
    success.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    restarts: int = 1
    loss: Loss = cross_entropy
    keep: Keep = "fooled"
    start: Start = "random"
    rule: Steps = "steepest"
    targeted: bool = False

    def __post_init__(self) -> None:
        one_of("rule", self.rule, get_args(Steps))
        super().__post_init__()

    @property
    def loop(self) -> Loop:
        """Steepest or Adam steps from the chosen start."""
        step = default_step(self.step, self.threat, self.steps)
        rule: Rule = Adam(step) if self.rule == "adam" else Steepest(step)
        return Loop(
            threat=self.threat,
            loss=toward_target(self.loss) if self.targeted else self.loss,
            rule=rule,
            keep=self.keep,
            start=self.start,
            steps=self.steps,
            restarts=self.restarts,
            targeted=self.targeted,
        )

    def with_loss(self, loss: Loss, start: Start) -> Self:
        """The same attack on another loss, from another start."""
        return replace(self, loss=loss, start=start)
