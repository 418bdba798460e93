"""Expectation over transformation."""

from dataclasses import dataclass

from torch import Tensor, nn

from holdfast.attacks._attack import WrapperAttack
from holdfast.attacks._gradients import estimating
from holdfast.contracts import Attack, Rows, Watch
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class EOT(WrapperAttack):
    """Any gradient attack on the expected loss of a randomized model (Athalye et al. 2018).

    Every gradient of ``attack`` is the mean over ``draws`` passes of the model, each with random numbers of its own,
    and so is every loss; the mean logits decide whether an iterate is misclassified. It costs ``draws`` times as much.
    For a model without randomness the result is that of ``attack``. The inner attack must not stop at an iterate
    that one set of draws misclassifies, which fresh draws may classify correctly: give it ``keep="last"`` or
    ``"worst"``.
    """

    attack: Attack
    draws: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws} but a gradient needs at least one draw")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        with estimating("eot", x, draws=self.draws):
            return self.attack(model, x, y, rng=rng, watch=watch)
