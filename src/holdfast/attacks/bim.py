"""The basic iterative method."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from holdfast.attacks._ascent import Ascent, Keep
from holdfast.attacks._rules import Steepest, default_step, scaled
from holdfast.contracts import Loss, Rows, Watch
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class BIM:
    """Steepest steps from the clean input, projected back into the threat (Kurakin et al. 2017).

    ``step`` defaults to 2.5·eps/steps.
    """

    threat: Threat
    steps: int = 40
    step: float | None = None
    loss: Loss = cross_entropy
    keep: Keep = "fooled"

    def __post_init__(self) -> None:
        _ = self.plan  # a bad combination is refused where it is made

    @property
    def plan(self) -> Ascent:
        """The loop this attack runs."""
        rule = Steepest(default_step(self.step, self.threat, self.steps))
        return Ascent(threat=self.threat, loss=self.loss, rule=rule, keep=self.keep, start="clean", steps=self.steps)

    def at(self, eps: float) -> "BIM":
        """The same attack at another eps, with the step size in proportion."""
        return replace(self, threat=replace(self.threat, eps=eps), step=scaled(self.step, self.threat, eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.plan(model, x, y, rng=rng, watch=watch)
