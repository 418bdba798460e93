"""Auto-PGD."""

from dataclasses import dataclass
from math import inf

from holdfast.attacks._adaptive import Adaptive, far_start
from holdfast.attacks._ascent import Draw, Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._checks import one_of
from holdfast.attacks._rules import Rule
from holdfast.attacks._sparse import Sparse, stages
from holdfast.contracts import Keep, Loss
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, logit_difference, reads_target, toward_target


@dataclass(frozen=True, kw_only=True)
class APGD(LoopAttack):
    """Auto-PGD, steps with momentum whose size adapts to the progress of the loss (Croce and Hein 2020; in l1, Croce
    and Hein 2021).

    With ``loss=cross_entropy`` or ``dlr`` it is APGD-CE or APGD-DLR. With a loss that aims at a class, such as
    ``targeted_dlr``, it is APGD-T: the ``targets`` wrong classes with the largest logits at the clean input are
    attacked in turn, and any misclassification is a success. AutoAttack gives it 5 targets in l1. ``targeted=True``
    attacks toward ``rows["target"]`` alone, and only that class is a success.
    """

    threat: Threat
    steps: int = 100
    restarts: int = 1
    loss: Loss = cross_entropy
    targets: int = 9
    keep: Keep = "fooled"
    targeted: bool = False

    @property
    def loop(self) -> Loop:
        """Adaptive steps from a random point at distance eps."""
        one_of("norm", self.threat.norm.name, ("linf", "l2", "l1"))
        if self.threat.eps == inf:
            raise ValueError("eps is infinite but the steps of Auto-PGD are proportional to it; give a finite eps")
        per_target = reads_target(self.loss) and not self.targeted
        if per_target and self.targets < 1:
            raise ValueError(f"targets is {self.targets} but an attack needs at least one class to aim at")
        rule, start, steps, outside = self._schedule()
        return Loop(
            threat=self.threat,
            loss=toward_target(self.loss) if self.targeted else self.loss,
            rule=rule,
            keep=self.keep,
            start=start,
            steps=steps,
            restarts=self.restarts,
            targeted=self.targeted,
            per_target=per_target,
            targets=self.targets,
            score=logit_difference if per_target else None,
            outside=outside,
        )

    def _schedule(self) -> tuple[Rule, Draw, int, int]:
        """The step rule, the start, the number of steps, and how many iterates may lie outside the threat."""
        eps = self.threat.eps
        if self.threat.norm.name != "l1":
            return Adaptive(eps, self.steps), far_start, self.steps, 0
        parts = stages(self.steps)
        rule = Sparse(eps, parts)
        return rule, rule.start, parts[-1].first + parts[-1].steps, parts[-1].first
