"""Black-box attack by transfer."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from holdfast.attacks._ascent import check_distant
from holdfast.contracts import Attack, Rows, Watch
from holdfast.geometry import Threat
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Craft on ``source``, score on the model under test, which is never asked (Papernot et al. 2016).

    The TLA paper's black-box column crafts on an independently trained copy of the target. The crafting attack must
    not stop at the source's boundary, so give it ``keep="last"`` or ``"worst"``.
    """

    source: nn.Module
    attack: Attack

    def __post_init__(self) -> None:
        check_distant("transfer", self.attack)

    @property
    def threat(self) -> Threat:
        """What the crafting attack may do."""
        return self.attack.threat

    def at(self, eps: float) -> "Transfer":
        """The same attack at another eps."""
        return replace(self, attack=self.attack.at(eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.attack(self.source, x, y, rng=rng, watch=watch)
