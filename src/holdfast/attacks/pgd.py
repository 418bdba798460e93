"""Projected gradient descent, here ascent."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import Tensor, nn

from holdfast.attacks._ascent import Ascent, Keep, Start, one_of
from holdfast.attacks._rules import Adam, Rule, Steepest, default_step, scaled
from holdfast.contracts import Loss, Rows, Watch
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng

Steps = Literal["steepest", "adam"]


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Steepest steps from a random start, projected back into the threat (Madry et al. 2018), in any norm.

    ``step`` defaults to 2.5·eps/steps. ``restarts`` keep the worst case per sample and attack only what still stands.
    ``keep="fooled"`` lets a sample leave as soon as it is fooled; training uses ``keep="last"``. ``start="near"`` is
    TRADES' start, Gaussian noise of 0.001; ``rule="adam"`` steps by Adam with learning rate ``step``, as LLR's code.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    restarts: int = 1
    loss: Loss = cross_entropy
    keep: Keep = "fooled"
    start: Start = "random"
    rule: Steps = "steepest"

    def __post_init__(self) -> None:
        one_of("rule", self.rule, get_args(Steps))
        _ = self.plan  # a bad combination is refused where it is made

    @property
    def plan(self) -> Ascent:
        """The loop this attack runs."""
        step = default_step(self.step, self.threat, self.steps)
        rule: Rule = Adam(step) if self.rule == "adam" else Steepest(step)
        return Ascent(
            threat=self.threat,
            loss=self.loss,
            rule=rule,
            keep=self.keep,
            start=self.start,
            steps=self.steps,
            restarts=self.restarts,
        )

    def at(self, eps: float) -> "PGD":
        """The same attack at another eps, with the step size in proportion."""
        return replace(self, threat=replace(self.threat, eps=eps), step=scaled(self.step, self.threat, eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.plan(model, x, y, rng=rng, watch=watch)
