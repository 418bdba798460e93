"""What certifiers by linear bounds share: the settings, and the radius of every sample of a batch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf, sqrt

import torch
from torch import Tensor, nn

from holdfast.certify._bounds.network import Network, check, convert
from holdfast.certify._bounds.region import Region
from holdfast.certify._bounds.search import largest, tried
from holdfast.contracts import Certificate, Norm
from holdfast.geometry import LInf
from holdfast.models.own import raised
from holdfast.rng import Rng
from holdfast.settings import check_tensors, check_types

_NORMS = ("linf", "l2")


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundCertifier(ABC):
    """A certifier that proves margins positive over all inputs within a radius."""

    model: nn.Module
    norm: Norm = field(default=LInf())
    box: tuple[float, float] = (0.0, 1.0)
    radii: tuple[float, ...] = ()
    tolerance: float = 0.01
    closed = True

    def __post_init__(self) -> None:
        check_types(self)
        if self.norm.name not in _NORMS:
            raise ValueError(f"the norm is {self.norm.name} but linear bounds are for {' and '.join(_NORMS)}")
        if len(self.box) != 2 or not self.box[0] < self.box[1]:
            raise ValueError(f"box is {list(self.box)} but must be two numbers, the lower one first")
        if not all(0 < radius < inf for radius in self.radii):
            raise ValueError(f"radii is {list(self.radii)} but finite radii above zero are certified; leave it out")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance} but it is a share of the radius, between 0 and 1")
        check(self.model)

    @abstractmethod
    def decide(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        """The predicted labels (b,) and the margins (b,) by which they win at x."""

    @abstractmethod
    def proved(self, network: Network, region: Region, label: Tensor) -> Tensor:
        """Lower bounds (b,) of the margins over a region."""

    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate:
        """Return label and radius of each input; ``rng`` is not used and no upper bound is known."""
        self._check(x)
        try:
            network = convert(self.model, x)
        except RuntimeError as error:  # of the network, given inputs of another shape
            raise ValueError(f"{raised('the network', error)} (given inputs of shape {tuple(x.shape[1:])})") from error
        x = x.detach().double()
        with torch.enable_grad():
            given = x.clone().requires_grad_()
            label, margin = self.decide(network, given)
            (slope,) = torch.autograd.grad(margin.sum(), given)
        with torch.no_grad():
            margin, none = margin.detach(), torch.full_like(margin, inf)
            return Certificate(label, self._radius(network, x, label, margin, slope), none)

    def _radius(self, network: Network, x: Tensor, label: Tensor, margin: Tensor, slope: Tensor) -> Tensor:
        def proof(which: Tensor, radius: Tensor) -> Tensor:
            return self.proved(network, Region(x[which], radius, self.norm.name, self.box), label[which])

        if self.radii:
            return tried(proof, margin, list(self.radii))
        most = (self.box[1] - self.box[0]) * (1.0 if self.norm.name == "linf" else sqrt(x[:1].numel()))
        dual = slope.flatten(1).abs().sum(1) if self.norm.name == "linf" else slope.flatten(1).norm(dim=1)
        # half of the distance to the decision boundary of the linearized margin
        return largest(proof, margin, (margin / 2 / dual.clamp_min(1e-300)).clamp_min(1e-30), most, self.tolerance)

    def _check(self, x: Tensor) -> None:
        check_tensors(x=x)
        if not x.is_floating_point() or not x.isfinite().all():
            raise ValueError(f"x is {x.dtype} or holds NaN or infinite values; give finite numbers of floating point")
        if x.numel() and (x.min() < self.box[0] or x.max() > self.box[1]):
            raise ValueError(
                f"x spans [{x.min():.3g}, {x.max():.3g}] but the box is [{self.box[0]:g}, {self.box[1]:g}]; give "
                "box = [-inf, inf] if inputs have no bounds"
            )


def margin_rows(label: Tensor, classes: int) -> Tensor:
    """The rows (b, classes, classes) whose products with logits are the margins of the label over each class."""
    rows = -torch.eye(classes, dtype=torch.float64, device=label.device).expand(len(label), classes, classes)
    return rows + nn.functional.one_hot(label, classes)[:, None, :]


def least_margin(lower: Tensor, label: Tensor) -> Tensor:
    """The smallest margin over the classes other than the label."""
    return lower.scatter(1, label[:, None], inf).amin(1)


def logit_margin(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted labels, and by how much their logits exceed the second largest."""
    top = logits.topk(2, dim=1)
    return top.indices[:, 0], top.values[:, 0] - top.values[:, 1]
