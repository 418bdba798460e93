"""CROWN: linear bounds of networks."""

from dataclasses import dataclass

from torch import Tensor

from holdfast.certify._bounds.alpha import optimized
from holdfast.certify._bounds.certifier import BoundCertifier, least_margin, logit_margin, margin_rows
from holdfast.certify._bounds.network import Network
from holdfast.certify._bounds.propagate import Bounds, Intermediate
from holdfast.certify._bounds.region import Region


@dataclass(frozen=True, eq=False, kw_only=True)
class CROWN(BoundCertifier):
    """Certified radii of a network by linear bounds, for ``norm`` linf or l2 (Zhang et al. 2018).

    The margins of the label over all other classes are bounded from below by linear functions of the input, whose
    minimum over the perturbed inputs, those in ``box``, is known. Each bound is the tighter one of this and of interval
    arithmetic. The radius is the largest that is proved, up to the share ``tolerance``; if ``radii`` are given only
    these are tried, which takes less time. The radius of a prediction that cannot change in the whole box is infinite.

    ``intermediate = "ibp"`` bounds the inputs of activations by interval arithmetic alone (CROWN-IBP, Zhang et al.
    2020): much faster, and much looser in deep networks. With ``alpha_steps`` the slopes of lower bounds are optimized
    by that many steps of gradient ascent (Xu et al. 2021), at fixed bounds of the inputs of activations.

    Radii hold for the network in real numbers and in float32; see the overview of ``certify/_bounds`` for the proof.
    A hypersphere head is a linear layer here, exactly. Networks with layers that are not supported are refused.
    """

    intermediate: Intermediate = "crown"
    alpha_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_steps < 0:
            raise ValueError(f"alpha_steps is {self.alpha_steps} but must be a number of steps, zero or more")

    def decide(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logit and its distance to the second largest."""
        return logit_margin(network.values(x)[network.output])

    def proved(self, network: Network, region: Region, label: Tensor) -> Tensor:
        """The smallest margin of the label over another class."""
        bounds = Bounds(network, region, self.intermediate)
        rows = margin_rows(label, network.shape(network.output)[0])
        lower = bounds.lower(network.output, rows)
        if self.alpha_steps:
            lower = optimized(bounds, network.output, rows, lower, self.alpha_steps)
        return least_margin(lower, label)
