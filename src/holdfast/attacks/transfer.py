"""Black-box attack by transfer."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from holdfast.attacks._attack import WrapperAttack
from holdfast.attacks._gradients import estimating
from holdfast.attacks._images import Diversity, check_images, gaussian_smoothing
from holdfast.contracts import Attack, Cost, Outputs, Rows, Watch
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Transfer(WrapperAttack):
    """Craft on ``source`` without evaluating the model under test (Papernot et al. 2016).

    The black-box column of the TLA paper crafts on an independently trained copy of the target. The inner attack must
    not stop at the boundary of the source, so give it ``keep="last"`` or ``"worst"``.

    Several sources form an ensemble (Liu et al. 2017): the attack sees the mean of their logits, which Dong et al.
    (2018) found to transfer better than the mean of probabilities or of losses.

    Two options for images, for inner attacks that run the gradient loop, such as MIM: ``diversity`` is the probability
    with which a step sees a randomly resized and padded image (DI, Xie et al. 2019, who use 0.5), of at least
    ``smallest`` times its size; ``translation`` is the odd size of the Gaussian kernel that smooths gradients (TI,
    Dong et al. 2019, who use 15 for images of 299 pixels).
    """

    source: nn.Module | Sequence[nn.Module]
    attack: Attack
    diversity: float = 0.0
    smallest: float = 0.9
    translation: int = 1
    black_box = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources:
            raise ValueError("source is an empty list but an attack needs at least one model to craft on")
        if not 0 <= self.diversity <= 1:
            raise ValueError(f"diversity is {self.diversity} but it is a probability; use a number in [0, 1]")
        if not 0 < self.smallest < 1:
            raise ValueError(f"smallest is {self.smallest} but images are made smaller; use a share between 0 and 1")
        if self.translation < 1 or self.translation % 2 == 0:
            raise ValueError(
                f"translation is {self.translation} but a kernel has an odd size of 1 (no smoothing) or more"
            )

    @property
    def sources(self) -> tuple[nn.Module, ...]:
        """The models on which the attack crafts."""
        return (self.source,) if isinstance(self.source, nn.Module) else tuple(self.source)

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x, crafted on the sources."""
        sources = self.sources
        crafted_on = sources[0] if len(sources) == 1 else _Ensemble(sources)
        told = watch if watch is None or len(sources) == 1 else partial(_told, watch, len(sources))
        with self._options(x, rng):
            return self.attack(crafted_on, x, y, rng=rng, watch=told)

    def _options(self, x: Tensor, rng: Rng) -> AbstractContextManager[None]:
        """The context in which loops take diverse inputs and smoothed gradients, if that is asked for."""
        diverse, smooth = self.diversity > 0, self.translation > 1
        if not (diverse or smooth):
            return nullcontext()
        check_images(x, "diversity" if diverse else "translation")
        return estimating(
            "transfer with diversity or translation",
            x,
            change=Diversity(self.diversity, self.smallest, rng.fork("diversity")) if diverse else None,
            smooth=partial(gaussian_smoothing, size=self.translation) if smooth else None,
        )


def _told(watch: Watch, models: int, rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
    """Tell ``watch`` the cost of an ensemble, each evaluation of which evaluates every model."""
    watch(rows, x_adv, loss, Cost(models * cost.forwards, models * cost.backwards))


class _Ensemble(nn.Module):
    """The mean of the logits of several models; its features are those of all models side by side."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and mean logits of one forward pass of every model."""
        outs = [adapt(model).outputs(x, layer) for model in self.models]
        classes = sorted({out.logits.shape[1] for out in outs})
        if len(classes) > 1:
            raise ValueError(
                f"the sources have {' and '.join(map(str, classes))} classes, so their logits have no mean; "
                "give sources with the classes of the model under test"
            )
        return Outputs(
            x, torch.cat([out.features for out in outs], 1), torch.stack([out.logits for out in outs]).mean(0)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits."""
        return self.outputs(x).logits
