"""Crafting through normalized features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from holdfast.attacks._ascent import check_distant
from holdfast.contracts import Attack, Outputs, Rows, Watch
from holdfast.geometry import Threat, unit
from holdfast.models.classifier import adapt, linear_calls
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class FeatureNorm:
    """Craft as if the features of the model had length ``scale``; the model itself is judged (Pang et al. 2020).

    The rebuttal of hypersphere embedding found one and two steps of PGD on an ordinary network stronger this way
    (its Table A, which does not say at which scale). The crafting attack sees other logits than the judge, so give it
    ``keep="last"`` or ``"worst"``.
    """

    attack: Attack
    scale: float = 10.0

    def __post_init__(self) -> None:
        check_distant("feature_norm", self.attack)
        if not 0 < self.scale < torch.inf:
            raise ValueError(f"scale is {self.scale} but it is the length of the features; use a number above 0")

    @property
    def threat(self) -> Threat:
        """What the crafting attack may do."""
        return self.attack.threat

    def at(self, eps: float) -> "FeatureNorm":
        """The same attack at another eps."""
        return replace(self, attack=self.attack.at(eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        return self.attack(_Normalized(model, self.scale), x, y, rng=rng, watch=watch)


class _Normalized(nn.Module):
    """A model whose last layer is given its features at one length."""

    def __init__(self, model: nn.Module, scale: float) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features as they are, logits of the normalized ones."""
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
