"""Attack through normalized features."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.attacks._attack import WrapperAttack
from holdfast.contracts import Attack, Outputs, Rows, Watch
from holdfast.geometry import unit
from holdfast.models.classifier import adapt, linear_calls
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class FeatureNorm(WrapperAttack):
    """Craft on the model with its features rescaled to length ``scale`` (Pang et al. 2020).

    The rebuttal of hypersphere embedding reports that one and two steps of PGD on an ordinary network are stronger
    this way (its Table A, which does not give the scale). The inner attack sees other logits than those of the model
    under test, so give it ``keep="last"`` or ``"worst"``.
    """

    attack: Attack
    scale: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale < torch.inf:
            raise ValueError(f"scale is {self.scale} but it is the length of the features; use a number above 0")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x, crafted through normalized features."""
        return self.attack(_Normalized(model, self.scale), x, y, rng=rng, watch=watch)


class _Normalized(nn.Module):
    """A model whose last linear layer receives features of length ``scale``."""

    def __init__(self, model: nn.Module, scale: float) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """The features of the model, and the logits of the normalized features."""
        with linear_calls(self.model) as calls:
            out = adapt(self.model).outputs(x, layer)
        if not calls or not torch.equal(calls[-1].output, out.logits):
            raise ValueError(
                "the logits of this model do not come straight from a linear layer, so its features cannot be "
                "normalized before it; use the attack itself, without feature_norm"
            )
        head, features, _ = calls[-1]
        return Outputs(x, out.features, head(self.scale * unit(features)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the normalized features."""
        return self.outputs(x).logits
