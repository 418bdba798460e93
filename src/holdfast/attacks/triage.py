"""A cascade that spends its gradients on the samples that came nearest to being misclassified."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._cascade import CascadeAttack
from holdfast.attacks._checks import norm_of
from holdfast.attacks.apgd import APGD
from holdfast.attacks.fab import FAB
from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.attacks.pgd import PGD
from holdfast.attacks.pma import PMA
from holdfast.attacks.square import Square
from holdfast.contracts import Stage
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy, logit_difference, targeted_logit_difference

NORMS = ("linf", "l2", "l1")

_STEPS = 5  # from the clean input
_PMA = 24
_APGD = 24  # in l1, on each of two losses
_TARGETED = (  # share of the samples still standing, classes, steps
    (0.6, 4, 20),
    (0.3, 6, 30),
    (0.12, 9, 40),
    (0.06, 9, 80),
    (0.03, 9, 160),
)
_ALWAYS = 2  # targeted stages that are run in any case; a later one only if the stage before it fooled a sample
_LONG = (0.25, 100)  # share and steps of the longer probability margin attack
_FAB = (0.05, 3, 20)
_SQUARE = (  # share, queries, and the share of its samples that the stage before must have fooled
    (0.1, 1000, None),
    (0.25, 2500, 0.0),
    (1.0, 5000, 0.1),
)


@dataclass(frozen=True, kw_only=True)
class Triage(CascadeAttack):
    """A cascade about as strong as AutoAttack that takes a fraction of its gradients and queries.

    AutoAttack spends nearly all of its passes on samples that it never breaks. This cascade runs short attacks on all
    samples, then longer ones on fewer and fewer, those whose largest logit difference so far is largest:

    1. five steps of PGD on the logit difference from the clean input, which suffice for models without a defense;
    2. the probability margin attack, two runs of 24 steps;
    3. targeted attacks with decaying steps: 4 classes x 20 steps on 60 % of the samples that still stand, 6 x 30 on
       30 %; then 9 x 40 on 12 %, 9 x 80 on 6 % and 9 x 160 on 3 %, each of these only if the stage before it fooled a
       sample;
    4. the probability margin attack again, two runs of 100 steps on 25 %, which finds other samples than the targeted
       attacks;
    5. FAB on 5 %, three classes x 20 steps, for what minimal-norm attacks find;
    6. Square with 1000 queries on 10 %, for what gradients do not find. If it fools any sample, it is run with 2500
       queries on 25 %; if that fools more than a tenth of these, gradients are masked, and it is run with 5000 queries
       on all that still stand, as in AutoAttack.

    In l1, where a steepest step changes a single coordinate, Auto-PGD takes the place of these steps: 24 on the logit
    difference, 24 on cross entropy, and targeted Auto-PGD with the classes, steps and shares above.

    All shares are of the samples that still stand, so the schedule is the same for a hundred samples and for ten
    thousand.

    A sample that is never fooled gets at least the work of the first two items. The schedule is fixed, so nothing is
    tuned on the samples that are judged. It is not AutoAttack, and its results must not be called so. ``budget``
    limits the gradients per sample that is never fooled, on average over these samples: stages that would exceed it are
    left out.
    """

    threat: Threat
    budget: int | None = None

    def __post_init__(self) -> None:
        norm_of("triage", self.threat, NORMS)
        _, least = next(self._all(10))
        if self.budget is not None and self.budget < least:
            raise ValueError(f"budget is {self.budget} but the first stage alone takes {least} gradients")
        self.stages(10)  # refuses settings that the attacks refuse

    def stages(self, classes: int) -> Sequence[Stage]:
        """The attacks in order, as many as the budget allows."""
        left = float("inf") if self.budget is None else self.budget
        chosen = []
        for stage, gradients in self._all(classes):
            if stage.share * gradients <= left:
                left -= stage.share * gradients
                chosen.append(stage)
        return chosen

    def _all(self, classes: int) -> Iterator[tuple[Stage, int]]:
        """Every stage with its gradients per sample."""
        threat, wrong = self.threat, classes - 1
        yield from self._short()
        for number, (share, targets, steps) in enumerate(_TARGETED):
            many, later = min(targets, wrong), number >= _ALWAYS
            attack, name = self._targeted(many, steps), f"targeted {many} x {steps}"
            yield (
                Stage(name=name, attack=attack, share=share, if_fooled=0.0 if later else None),
                _gradients(attack, many),
            )
        yield from self._other()
        share, targets, steps = _FAB
        fab = FAB(threat=threat, targets=min(targets, wrong), steps=steps, keep="fooled")
        yield Stage(name="fab", attack=fab, share=share), min(targets, wrong) * steps
        for share, queries, fooled in _SQUARE:
            square = Square(threat=threat, queries=queries)
            yield Stage(name=f"square {queries}", attack=square, share=share, if_fooled=fooled), 0

    def _short(self) -> Iterator[tuple[Stage, int]]:
        """The stages on all samples."""
        threat = self.threat
        if threat.norm.name == "l1":
            for name, loss in (("apgd-margin", logit_difference), ("apgd-ce", cross_entropy)):
                attack = APGD(threat=threat, loss=loss, steps=_APGD)
                yield Stage(name=name, attack=attack), _gradients(attack)
            return
        first = PGD(threat=threat, steps=_STEPS, step=threat.eps / 2, loss=logit_difference, start="clean")
        pma = PMA(threat=threat, steps=_PMA)
        yield Stage(name="margin", attack=first), _gradients(first)
        yield Stage(name="pma", attack=pma), _gradients(pma, pma.loop.restarts)

    def _other(self) -> Iterator[tuple[Stage, int]]:
        """The longer stage on another loss than that of the targeted attacks."""
        if self.threat.norm.name != "l1":
            share, steps = _LONG
            pma = PMA(threat=self.threat, steps=steps)
            yield Stage(name=f"pma {steps}", attack=pma, share=share), _gradients(pma, pma.loop.restarts)

    def _targeted(self, targets: int, steps: int) -> LoopAttack:
        if self.threat.norm.name == "l1":
            return APGD(threat=self.threat, loss=targeted_logit_difference, targets=targets, steps=steps)
        return MultiTargeted(threat=self.threat, targets=targets, steps=steps, decay=True)


def _gradients(attack: LoopAttack, runs: int = 1) -> int:
    """The gradients per sample that is never fooled; some attacks evaluate the last iterate of a run too."""
    return runs * (attack.loop.steps + attack.loop.evaluates_last)
