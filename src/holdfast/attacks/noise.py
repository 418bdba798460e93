"""Random noise."""

from dataclasses import dataclass

from torch import Tensor, nn

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._checks import check
from holdfast.contracts import Rows, Watch
from holdfast.geometry import Threat
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Noise(StandaloneAttack):
    """A uniform draw from the ball, without evaluating the model: the baseline that every attack must beat."""

    threat: Threat
    black_box = True

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Noisy versions of x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        return self.threat.sample(x.detach(), rng.fork("noise").at(rows.index))
