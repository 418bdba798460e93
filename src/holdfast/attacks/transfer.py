"""Black-box attack by transfer."""

from dataclasses import dataclass

from torch import Tensor, nn

from holdfast.attacks._attack import WrapperAttack
from holdfast.contracts import Attack, Rows, Watch
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Transfer(WrapperAttack):
    """Craft on ``source`` without evaluating the model under test (Papernot et al. 2016).

    The black-box column of the TLA paper crafts on an independently trained copy of the target. The inner attack must
    not stop at the boundary of the source, so give it ``keep="last"`` or ``"worst"``.
    """

    source: nn.Module
    attack: Attack
    black_box = True

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x, crafted on the source."""
        return self.attack(self.source, x, y, rng=rng, watch=watch)
