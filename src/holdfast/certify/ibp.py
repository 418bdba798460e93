"""Interval bound propagation."""

from dataclasses import dataclass

from torch import Tensor

from holdfast.certify._bounds.certifier import BoundCertifier, least_margin, logit_margin, margin_rows
from holdfast.certify._bounds.network import Network
from holdfast.certify._bounds.propagate import Bounds
from holdfast.certify._bounds.region import Region


@dataclass(frozen=True, eq=False, kw_only=True)
class IBP(BoundCertifier):
    """Certified radii of a network by interval arithmetic, layer by layer (Gowal et al. 2018).

    It is fast, and proves little about networks that were not trained for it; :class:`holdfast.certify.crown.CROWN` is
    never worse. Margins are bounded after the last layer is merged into them. The settings are those of CROWN.
    """

    def decide(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logit and its distance to the second largest."""
        return logit_margin(network.values(x)[network.output])

    def proved(self, network: Network, region: Region, label: Tensor) -> Tensor:
        """The smallest margin of the label over another class."""
        bounds = Bounds(network, region, "ibp")
        rows = margin_rows(label, network.shape(network.output)[0])
        return least_margin(bounds.quick_lower(network.output, rows), label)
