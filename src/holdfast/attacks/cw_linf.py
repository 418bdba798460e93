"""Carlini and Wagner's loss under an L-infinity budget."""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from holdfast.attacks._ascent import Keep
from holdfast.attacks._rules import scaled
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Rows, Watch
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class CWLinf:
    """PGD on the logit difference capped at ``kappa``, as Madry et al. 2018 and the TLA code use it (kappa 50)."""

    threat: Threat
    steps: int = 40
    step: float | None = None
    restarts: int = 1
    kappa: float = 50.0
    keep: Keep = "fooled"

    def __post_init__(self) -> None:
        _ = self.plan  # a bad combination is refused where it is made

    @property
    def plan(self) -> PGD:
        """The attack this one is made of."""
        loss = partial(logit_difference, kappa=self.kappa)
        return PGD(
            threat=self.threat, steps=self.steps, step=self.step, restarts=self.restarts, loss=loss, keep=self.keep
        )

    def at(self, eps: float) -> "CWLinf":
        """The same attack at another eps, with the step size in proportion."""
        return replace(self, threat=replace(self.threat, eps=eps), step=scaled(self.step, self.threat, eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.plan(model, x, y, rng=rng, watch=watch)
