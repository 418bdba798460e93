"""A targeted attack on every wrong class."""

from dataclasses import dataclass

from torch import Tensor, pi

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._rules import Annealed, Rule, Steepest, default_step
from holdfast.contracts import Keep, Start
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference, targeted_logit_difference


@dataclass(frozen=True, kw_only=True)
class MultiTargeted(LoopAttack):
    """Maximize z_t - z_y for one wrong class t after the other (Gowal et al. 2019); any misclassification is a success.

    ``targets`` is the number of classes, those with the largest logits at the clean input first; None attacks all.
    Each target has a start of its own and ``steps`` steps. ``step`` defaults to 2.5·eps/steps. With ``decay`` the step
    size falls from ``step``, by default 2·eps, to zero by half a cosine, which finds more in few steps.
    """

    threat: Threat
    steps: int = 20
    step: float | None = None
    targets: int | None = None
    restarts: int = 1
    decay: bool = False
    start: Start = "random"
    keep: Keep = "fooled"

    @property
    def loop(self) -> Loop:
        """Steepest steps on the difference to one logit after the other."""
        if self.targets is not None and self.targets < 1:
            raise ValueError(f"targets is {self.targets} but an attack needs at least one class to aim at")
        return Loop(
            threat=self.threat,
            loss=targeted_logit_difference,
            rule=self._rule(),
            keep=self.keep,
            start=self.start,
            steps=self.steps,
            restarts=self.restarts,
            per_target=True,
            targets=self.targets,
            score=logit_difference,
        )

    def _rule(self) -> Rule:
        if not self.decay:
            return Steepest(default_step(self.step, self.threat, self.steps))
        step = default_step(2 * self.threat.eps if self.step is None else self.step, self.threat, self.steps)
        return Annealed(lambda t: half_cosine(step, t, self.steps))


def half_cosine(step: float, t: Tensor, steps: int) -> Tensor:
    """Step sizes that fall from ``step`` to zero by half a cosine in ``steps`` steps."""
    return step / 2 * (1 + (pi * t / steps).cos())
