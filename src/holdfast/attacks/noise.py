"""Random noise."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from holdfast.attacks._ascent import check
from holdfast.contracts import Rows, Watch
from holdfast.geometry import Threat
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A uniform draw from the ball: the baseline every attack must beat. The model is never asked."""

    threat: Threat

    def at(self, eps: float) -> "Noise":
        """The same attack at another eps."""
        return replace(self, threat=replace(self.threat, eps=eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        return self.threat.sample(x.detach(), rng.fork("noise").at(rows.index))
