"""The fast gradient sign method."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from holdfast.attacks._ascent import Ascent, Start
from holdfast.attacks._rules import Steepest, default_step
from holdfast.contracts import Loss, Rows, Watch
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """One step of length eps in the steepest direction (Goodfellow et al. 2015).

    ``start="random"`` steps from a random point, as the TLA code's training log does.
    """

    threat: Threat
    loss: Loss = cross_entropy
    start: Start = "clean"

    def at(self, eps: float) -> "FGSM":
        """The same attack at another eps."""
        return replace(self, threat=replace(self.threat, eps=eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        plan = Ascent(
            threat=self.threat,
            loss=self.loss,
            rule=Steepest(default_step(self.threat.eps, self.threat, 1)),
            keep="last",
            start=self.start,
            steps=1,
        )
        return plan(model, x, y, rng=rng, watch=watch)
