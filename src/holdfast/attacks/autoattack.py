"""AutoAttack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.attacks._cascade import CascadeAttack
from holdfast.attacks._checks import norm_of, one_of
from holdfast.attacks.apgd import APGD
from holdfast.attacks.eot import EOT
from holdfast.attacks.fab import FAB
from holdfast.attacks.square import Square
from holdfast.contracts import Attack, Keep, Loss, Stage
from holdfast.geometry import Threat
from holdfast.losses.classification import (
    cross_entropy,
    dlr,
    logit_difference,
    targeted_dlr,
    targeted_logit_difference,
)

Version = Literal["standard", "plus", "rand"]

_STAGES: Mapping[Version, tuple[str, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}


@dataclass(frozen=True, kw_only=True)
class AutoAttack(CascadeAttack):
    """APGD, targeted APGD, targeted FAB and Square in turn, each on the samples still standing (Croce and Hein 2020).

    ``version="standard"`` is the suite whose results are compared across papers. ``plus`` adds APGD on the DLR loss and
    untargeted FAB, with five restarts of APGD and FAB. ``rand`` is for randomized models: APGD on both losses, every
    gradient a mean over ``draws`` passes. In l1, APGD of ``standard`` has five restarts and five targets (Croce and
    Hein 2021).

    The DLR loss needs three classes, and its targeted form four. With fewer, the logit difference takes its place, and
    the name of the stage says so.
    """

    threat: Threat
    version: Version = "standard"
    draws: int = 20

    def __post_init__(self) -> None:
        norm_of("autoattack", self.threat, ("linf", "l2", "l1"))
        one_of("version", self.version, get_args(Version))
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws} but a gradient needs at least one draw")
        self.stages(10)  # refuses settings that the attacks refuse

    def stages(self, classes: int) -> Sequence[Stage]:
        """The attacks of the suite, in order."""
        return [self._stage(name, classes) for name in _STAGES[self.version]]

    @property
    def _sparse(self) -> bool:
        """True for the settings of Croce and Hein (2021)."""
        return self.version == "standard" and self.threat.norm.name == "l1"

    def _stage(self, name: str, classes: int) -> Stage:
        restarts = 5 if self.version == "plus" or self._sparse else 1
        if name == "apgd-ce":
            return self._apgd(name, cross_entropy, restarts)
        if name == "apgd-dlr":
            return self._apgd(name, dlr, restarts) if classes > 2 else self._apgd(name, logit_difference, restarts)
        if name == "apgd-t":
            return self._apgd(name, targeted_dlr if classes > 3 else targeted_logit_difference, 1, classes)
        if name == "square":
            return Stage(name=name, attack=Square(threat=self.threat))
        fab_restarts, targets = (restarts, 0) if name == "fab" else (1, min(9, classes - 1))
        attack = FAB(threat=self.threat, restarts=fab_restarts, targets=targets, keep="fooled")
        return Stage(name=name, attack=attack)

    def _apgd(self, name: str, loss: Loss, restarts: int, classes: int = 10) -> Stage:
        keep: Keep = "worst" if self.version == "rand" else "fooled"
        targets = min(5 if self._sparse else 9, classes - 1)
        attack: Attack = APGD(threat=self.threat, loss=loss, restarts=restarts, targets=targets, keep=keep)
        if self.version == "rand":
            attack = EOT(attack=attack, draws=self.draws)
        replaced = loss in (logit_difference, targeted_logit_difference)
        return Stage(name=f"{name}, logit difference instead of DLR" if replaced else name, attack=attack)
