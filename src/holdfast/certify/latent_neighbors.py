"""Certified nearest neighbors and prototypes in the feature space of a network."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from holdfast.certify._bounds.certifier import BoundCertifier
from holdfast.certify._bounds.lipschitz import constant, rounding_of
from holdfast.certify._bounds.network import Network, convert
from holdfast.certify._bounds.propagate import Bounds, Intermediate
from holdfast.certify._bounds.region import Region
from holdfast.geometry import unit
from holdfast.losses.latent import class_means
from holdfast.mahalanobis import factor
from holdfast.neighbors import vote

Learned = Callable[[Tensor, Tensor], Tensor]
"""Returns the matrix of a metric for features (n, d) and labels (n,)."""

_BLOCK = 256  # images of the gallery per forward pass
_ENTRIES = 1 << 24  # margins held at once: 128 MiB
_ROWS = 64  # competitors whose linear bounds are computed at once
_UNIT = 2.0**-53


class _Gallery(NamedTuple):
    """Points of feature space as linear functions of the features z: the nearest has the largest z·direction + offset.

    For the squared distance (z - g)ᵀ M (z - g) these are 2 z·M g - gᵀ M g, and for the cosine z·g / |g|.
    """

    directions: Tensor
    offsets: Tensor
    labels: Tensor

    def scores(self, z: Tensor) -> Tensor:
        return z @ self.directions.T + self.offsets

    def rounding(self, size: Tensor) -> Tensor:
        """Bounds (b, n) of the rounding errors of scores in float64, ours and those of whoever compares them, for
        features of this absolute ``size``."""
        length = size.norm(dim=1)[:, None] * self.directions.norm(dim=1)
        error: Tensor = 8 * _UNIT * (size.shape[1] + 16) * (length + self.offsets.abs())
        return error


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentNeighbors(BoundCertifier):
    """Nearest neighbors in the features of a network, certified in the norm ``norm`` (linf or l2) of the input.

    The features z are the input of the last linear layer. Training samples ``points`` with ``labels`` are the gallery
    (``gallery`` of them, evenly spaced; None: all), and the label is that of most of the ``k`` nearest, or that of the
    nearest mean of a class if ``prototypes``. The ``distance`` is Euclidean, the cosine, or Mahalanobis with
    ``matrix``, which may also be a function that learns it from the features and labels of the gallery.

    For all of them "z is nearer to a than to b" is a linear inequality of z, in which the length of z cancels out for
    the cosine. So the read-out is a linear layer, and CROWN bounds its margins (``by = "crown"``). ``by = "lipschitz"``
    needs no bounds of the network but its Lipschitz constant, the product of spectral norms: the features stay within
    constant · radius, and the bisector of a and b at more than that distance is not crossed. It is fast, and loose.

    **The bound for several votes.** Let m = (k + 1) / 2 be the majority. *Claim:* the label c wins at z if for all but
    m - 1 points b of other labels there are m points of label c that are nearer to z than b is. *Proof:* Otherwise m or
    more of the k nearest points have another label, so at most m - 1 have the label c. One of those m points is such a
    b. The m points of label c that are nearer than b are among the k nearest as well: a contradiction. The m points are
    those nearest to the features of the clean input.

    The label is another classifier's than the network's own. Points of the gallery and their scores are computed in
    float64; of the features of x every float32 execution is covered, as in CROWN. The other settings are CROWN's.
    """

    points: Tensor | None = None
    labels: Tensor | None = None
    matrix: Tensor | Learned | None = None
    distance: Literal["euclidean", "cosine", "mahalanobis"] = "euclidean"
    k: int = 1
    prototypes: bool = False
    gallery: int | None = None
    by: Literal["crown", "lipschitz"] = "crown"
    intermediate: Intermediate = "crown"
    certifies = "the nearest neighbors of its features"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1 or self.k % 2 == 0:
            raise ValueError(f"k is {self.k} but must be odd, so that a majority is one; give 1, 3, 5, ...")
        if self.prototypes and self.k > 1:
            raise ValueError(f"k is {self.k} but each class has one prototype; leave k out")
        if self.gallery is not None and self.gallery < 2:
            raise ValueError(f"gallery is {self.gallery} but at least 2 points are needed; leave it out for all")
        if self.matrix is not None and self.distance != "mahalanobis":
            raise ValueError(f'distance is "{self.distance}", which has no matrix; use "mahalanobis"')
        if self.by == "lipschitz" and self.norm.name != "l2":
            raise ValueError(f'norm is {self.norm.name} but Lipschitz constants are for l2; use norm = "l2"')
        if (self.points is None) != (self.labels is None):
            raise ValueError("points and labels belong together; give both")
        if self.points is not None and self.labels is not None:
            self._check_points(self.points, self.labels)

    @property
    def majority(self) -> int:
        """The votes that a label needs."""
        return (self.k + 1) // 2

    @cached_property
    def _known(self) -> _Gallery:
        """The gallery in feature space; computed once."""
        if self.points is None or self.labels is None:
            raise ValueError("nearest neighbors need a gallery; give points and labels, e.g. training samples")
        chosen = _spread(len(self.points), self.gallery)
        features, labels = self.features(self.points[chosen]), self.labels[chosen]
        root = self._root(features, labels)
        if self.distance == "cosine":
            features = unit(features)
        if self.prototypes:
            present, positions = torch.unique(labels, return_inverse=True)
            features, labels = class_means(features, positions, len(present)), present
        if self.distance == "cosine":
            return _Gallery(unit(features), features.new_zeros(len(features)), labels)
        mapped = features if root is None else features @ root.T
        directions = 2 * mapped if root is None else 2 * mapped @ root
        return _Gallery(directions, -mapped.square().sum(1), labels)

    def _root(self, features: Tensor, labels: Tensor) -> Tensor | None:
        """G with GᵀG = M up to a scale, which changes no neighbor."""
        if self.distance != "mahalanobis":
            return None
        if self.matrix is None:
            raise ValueError('distance is "mahalanobis" but there is no matrix; give matrix = M')
        matrix, width = self.matrix(features, labels) if callable(self.matrix) else self.matrix, features.shape[1]
        if matrix.shape != (width, width):
            raise ValueError(f"the matrix has shape {tuple(matrix.shape)} but there are {width} features")
        return factor(matrix.to(features.device))[0]

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The features (b, d) of inputs, in float64."""
        self._check(x)
        network = convert(self.model, x[:1])
        blocks = [
            network.values(part.detach().double())[network.features].flatten(1) for part in torch.split(x, _BLOCK)
        ]
        return torch.cat(blocks)

    def predict(self, x: Tensor) -> Tensor:
        """Return the (b,) labels of the nearest neighbors."""
        return self.read(self.features(x))

    def read(self, features: Tensor) -> Tensor:
        """Return the (b,) labels for features (b, d), e.g. as the ``readout`` of the attack ``latent``."""
        return self._vote(self._known.scores(features.double()))

    def _vote(self, scores: Tensor) -> Tensor:
        return vote(self._known.labels[scores.topk(self.k, dim=1).indices])

    def decide(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        """The label, and by how much its m-th nearest point is nearer than the m-th nearest of other labels."""
        scores = self._known.scores(network.values(x)[network.features].flatten(1))
        label = self._vote(scores.detach())
        return label, self._margin(scores, label)

    def _margin(self, scores: Tensor, label: Tensor) -> Tensor:
        same = self._known.labels == label[:, None]
        ours, theirs = (
            scores.masked_fill(left_out, -torch.inf).topk(self.majority, dim=1).values[:, -1]
            for left_out in (~same, same)
        )
        return ours - theirs

    def proved(self, network: Network, region: Region, label: Tensor) -> Tensor:
        """The margin of the clean input, negated where it is not proved that the label wins in the region.

        Lower bounds would jump where a competitor needs no linear bound any more, and with them the search.
        """
        size = max(1, _ENTRIES // (self.majority * len(self._known.labels)))
        parts = torch.split(torch.arange(len(label), device=label.device), size)
        return torch.cat([self._proved(network, region.take(which), label[which]) for which in parts])

    def _proved(self, network: Network, region: Region, label: Tensor) -> Tensor:
        bounds = Bounds(network, region, self.intermediate if self.by == "crown" else "ibp")
        interval, clean = bounds.intervals[network.features], network.values(region.x)[network.features].flatten(1)
        same = self._known.labels == label[:, None]
        scores = self._known.scores(clean)
        own = scores.masked_fill(~same, -torch.inf).topk(self.majority, dim=1).indices
        slack = self._known.rounding(interval.size.flatten(1))
        if self.by == "lipschitz":
            reach = constant(network, network.features, tuple(region.x.shape[1:])) * region.radius
            center, reach = clean, reach + rounding_of(bounds, network.features).flatten(1).norm(dim=1)
        else:
            center, reach = interval.center.flatten(1), interval.radius.flatten(1).norm(dim=1)
        lower = self._by_length(center, reach, own, slack).masked_fill(same, torch.inf)
        if self.by == "crown":
            for i in range(len(label)):
                self._by_lines(bounds.take(slice(i, i + 1)), own[i], slack[i], lower[i])
        won, margin = lower.kthvalue(self.majority, dim=1).values > 0, self._margin(scores, label)
        return torch.where(won, margin, -margin)

    def _by_length(self, center: Tensor, reach: Tensor, own: Tensor, slack: Tensor) -> Tensor:
        """Lower bounds (b, n) of the margins over every point if the features stay within ``reach`` of ``center``."""
        u, scores = self._known.directions, self._known.scores(center)
        squares, lower = u.square().sum(1), []
        for a in own.T:
            pairs = squares[a][:, None] + squares
            apart = pairs - 2 * u[a] @ u.T + 8 * _UNIT * (u.shape[1] + 8) * pairs  # no smaller than |u_a - u_b|^2
            margin = scores.gather(1, a[:, None]) - scores - slack.gather(1, a[:, None]) - slack
            lower.append(margin - reach[:, None] * apart.clamp_min(0).sqrt() * (1 + 1e-9))
        return torch.stack(lower).amin(0).nan_to_num(nan=-torch.inf)  # kthvalue would call NaN the largest

    def _by_lines(self, bounds: Bounds, own: Tensor, slack: Tensor, lower: Tensor) -> None:
        """Raise the lower bounds (n,) of one sample that prove nothing, until too many cannot be raised."""
        at, u, offsets = bounds.network.features, self._known.directions, self._known.offsets
        shape, failed = bounds.intervals[at].low.shape[1:], 0
        for others in torch.split(lower.argsort()[: int((lower <= 0).sum())], _ROWS):
            a, b = own.repeat_interleave(len(others)), others.repeat(len(own))
            found = bounds.lower(at, (u[a] - u[b]).reshape(1, -1, *shape))[0]
            found = (found + offsets[a] - offsets[b] - slack[a] - slack[b]).reshape(len(own), -1)
            lower[others] = torch.maximum(lower[others], found.amin(0).nan_to_num(nan=-torch.inf))
            failed += int((lower[others] <= 0).sum())
            if failed >= self.majority:
                return

    def _check_points(self, points: Tensor, labels: Tensor) -> None:
        if not points.is_floating_point() or not points.isfinite().all():
            raise ValueError(f"points are {points.dtype} or hold NaN or infinite values; give inputs of the network")
        if labels.shape != points.shape[:1] or labels.dtype != torch.int64 or (len(labels) and labels.min() < 0):
            raise ValueError(
                f"labels are {labels.dtype} of shape {tuple(labels.shape)}; give {len(points)} of type int64, from 0"
            )
        counts = torch.unique(labels[_spread(len(labels), self.gallery)], return_counts=True)[1]
        if len(counts) < 2 or int(counts.min()) < self.majority:
            raise ValueError(
                f"the gallery has {len(counts)} labels of {int(counts.min()) if len(counts) else 0} points or more but "
                f"k = {self.k} needs two labels or more, each of {self.majority} points or more"
            )


def _spread(n: int, many: int | None) -> Tensor:
    """Positions of so many of n samples, evenly spaced."""
    many = n if many is None else min(many, n)
    return torch.arange(many) * n // max(many, 1)
