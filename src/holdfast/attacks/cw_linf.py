"""Carlini and Wagner's loss under an L-infinity budget."""

from dataclasses import dataclass
from functools import partial

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Keep
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference


@dataclass(frozen=True, kw_only=True)
class CWLinf(LoopAttack):
    """PGD on the logit difference capped at ``kappa``, as in Madry et al. 2018 and the code of TLA (kappa 50).

    The attack of Carlini and Wagner 2017 itself is ``cw_linf_original``.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    restarts: int = 1
    kappa: float = 50.0
    keep: Keep = "fooled"

    def __post_init__(self) -> None:
        if self.threat.norm.name != "linf":
            raise ValueError(
                f"cw_linf is for linf but the threat is in {self.threat.norm.name}; use pgd with "
                'loss = "logit_difference", or cw_l2 for l2'
            )
        super().__post_init__()

    @property
    def loop(self) -> Loop:
        """The loop of PGD on the capped logit difference."""
        loss = partial(logit_difference, kappa=self.kappa)
        return PGD(
            threat=self.threat, steps=self.steps, step=self.step, restarts=self.restarts, loss=loss, keep=self.keep
        ).loop
