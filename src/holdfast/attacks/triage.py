"""A cascade that spends its gradients on the samples that came nearest to being misclassified."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.attacks._cascade import CascadeAttack
from holdfast.attacks._checks import norm_of
from holdfast.attacks.fab import FAB
from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.attacks.pgd import PGD
from holdfast.attacks.pma import PMA
from holdfast.attacks.square import Square
from holdfast.contracts import Attack, Stage
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference

_STEPS = 5  # from the clean input, for models without a defense
_PMA = 30
_TARGETED = ((0.5, 3, 20), (0.2, 9, 30), (0.1, 9, 60))  # share of the samples, targets, steps
_FAB = (0.1, 3, 20)
_PROBE = (100, 200)  # samples and queries


@dataclass(frozen=True, kw_only=True)
class Triage(CascadeAttack):
    """A worst case as strong as AutoAttack's for about a tenth of its gradients.

    AutoAttack spends nearly all of its passes on samples that it never breaks. This cascade runs short attacks on all
    samples, then longer ones on fewer and fewer, those whose largest logit difference so far is largest:

    1. five steps from the clean input, which suffice for models without a defense;
    2. the probability margin attack with two runs of 30 steps;
    3. targeted attacks with decaying steps: 3 classes x 20 steps on half of the samples still standing, 9 x 30 on a
       fifth, 9 x 60 on a tenth;
    4. FAB on a tenth, for what minimal-norm attacks find;
    5. Square with 200 queries on the 100 nearest samples, as a probe for masked gradients. If it fools any sample, it
       runs with 5000 queries on all that still stand, as in AutoAttack.

    It is not AutoAttack, and results must not be called so. ``budget`` limits the gradients per sample that is never
    fooled: stages that would exceed it are left out, from the end.
    """

    threat: Threat
    budget: int | None = None

    def __post_init__(self) -> None:
        norm_of("triage", self.threat, ("linf", "l2", "l1"))
        if self.budget is not None and self.budget < _STEPS:
            raise ValueError(f"budget is {self.budget} but the first stage alone takes {_STEPS} gradients")
        self.stages(10)  # refuses settings that the attacks refuse

    def stages(self, classes: int) -> Sequence[Stage]:
        """The attacks in order, as many as the budget allows."""
        left = float("inf") if self.budget is None else self.budget
        chosen = []
        for stage, gradients in self._all(classes):
            left -= stage.share * gradients
            if left >= 0:
                chosen.append(stage)
        return chosen

    def _all(self, classes: int) -> Iterator[tuple[Stage, int]]:
        """Every stage with its gradients per sample."""
        threat, wrong = self.threat, classes - 1
        first = PGD(threat=threat, steps=_STEPS, step=threat.eps / 2, loss=logit_difference, start="clean")
        yield Stage(name="margin", attack=first), _STEPS
        yield Stage(name="pma", attack=PMA(threat=threat, steps=_PMA)), 2 * _PMA
        for share, targets, steps in _TARGETED:
            many = min(targets, wrong)
            attack: Attack = MultiTargeted(threat=threat, targets=many, steps=steps, decay=True)
            yield Stage(name=f"targeted {many} x {steps}", attack=attack, share=share), many * steps
        share, targets, steps = _FAB
        fab = FAB(threat=threat, targets=min(targets, wrong), steps=steps, keep="fooled")
        yield Stage(name="fab", attack=fab, share=share), min(targets, wrong) * steps
        samples, queries = _PROBE
        yield Stage(name="square probe", attack=Square(threat=threat, queries=queries), share=0.0, least=samples), 0
        yield Stage(name="square", attack=Square(threat=threat), while_found=True), 0
