"""The hypersphere embedding head."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.geometry import length, unit
from holdfast.models.heads._widths import check_widths
from holdfast.settings import is_number

WeightNorm = Literal["differentiable", "projected", "none"]


class Hypersphere(nn.Linear):
    """Scaled cosines between the features and one direction per class, without bias (HE, Pang et al. 2020).

    Logits are ``scale``·cos, in [-scale, scale], for attacks and for evaluation. Training methods subtract
    scale·``margin`` from the true logit in their cross entropy with the label and nowhere else: there is no margin in
    crafting, in the divergence of TRADES, the gap of LLR and the curvature of CURE, and logit pairing compares unscaled
    cosines, as in the authors' code. To craft with the margin, as the authors' FreeAT does, give the attack a
    ``cross_entropy`` with that margin; for the unscaled cosines of the authors' evaluation, one with temperature =
    scale.

    ``feature_norm=False``, ``weight_norm="none"`` and ``margin=0`` disable the parts. ``weight_norm="projected"`` is
    what the authors do: every training pass projects the weights themselves onto the sphere, without a gradient through
    the projection. The default normalizes the weights inside the forward pass: no pass changes the weights, all passes
    of a step evaluate the same function, and its exact gradient has no component along the weights.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        scale: float = 10.0,
        margin: float = 0.2,
        feature_norm: bool = True,
        weight_norm: WeightNorm = "differentiable",
    ) -> None:
        check_widths(width, classes)
        for name, value in (("scale", scale), ("margin", margin)):
            if not is_number(value):
                raise ValueError(f"{name} is {value!r} but must be a number")
        if not 0 < scale < torch.inf:
            raise ValueError(f"scale is {scale} but logits are scale times cosines; use a number above 0, e.g. 10")
        if not 0 <= margin < 1:
            raise ValueError(f"margin is {margin} but it is taken off a cosine; use a number in [0, 1), e.g. 0.2")
        if weight_norm not in get_args(WeightNorm):
            raise ValueError(f"weight_norm is {weight_norm!r} but must be one of {', '.join(get_args(WeightNorm))}")
        super().__init__(width, classes, bias=False)
        self.scale, self.margin = scale, margin
        self.feature_norm, self.weight_norm = feature_norm, weight_norm

    @classmethod
    def instead_of(
        cls,
        layer: nn.Module,
        *,
        scale: float = 10.0,
        margin: float = 0.2,
        feature_norm: bool = True,
        weight_norm: WeightNorm = "differentiable",
    ) -> "Hypersphere":
        """Create a head with the sizes and weights of a linear layer: ``net.fc = Hypersphere.instead_of(net.fc)``."""
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"the layer is a {type(layer).__name__} but hypersphere embedding takes the place of a linear one; "
                "give the linear layer that makes the logits"
            )
        sizes = layer.in_features, layer.out_features
        head = cls(*sizes, scale=scale, margin=margin, feature_norm=feature_norm, weight_norm=weight_norm)
        head.weight = layer.weight
        return head

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.weight_norm == "projected":
            # .data: autograd may still need the weights of an earlier pass of the step; they differ by rounding only
            self.weight.data.copy_(unit(self.weight.data))
        products = functional.linear(input, self.directions())
        # dividing the few logits is much cheaper than normalizing the many features
        return products * (self.scale / length(input) if self.feature_norm else self.scale)

    def directions(self) -> Tensor:
        """Return the (classes, width) class vectors, of unit length unless ``weight_norm="none"``."""
        if self.weight_norm == "none":
            return self.weight
        if self.weight_norm == "projected":
            lengths: Tensor = torch.linalg.vector_norm(self.weight.detach(), dim=1, keepdim=True)
            return self.weight / lengths
        return unit(self.weight)
