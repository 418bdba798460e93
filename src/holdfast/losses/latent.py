"""Losses of features and prototypes: points in feature space that stand for classes."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.geometry import unit

Distance = Literal["euclidean", "cosine"]
"""``euclidean`` is the squared L2 distance, ``cosine`` is 1 - cos of the angle."""


def class_means(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """(classes, d) the mean feature of each class, the prototypes of a nearest-class-mean classifier."""
    counts = torch.bincount(y, minlength=classes)
    if len(counts) > classes or not counts.all():
        raise ValueError(
            f"the samples have the labels {sorted(set(y.tolist()))} but each of the classes 0..{classes - 1} needs "
            "at least one, and there are no others"
        )
    return features.new_zeros(classes, features.shape[1]).index_add_(0, y, features) / counts[:, None]


def toward_prototype(out: Outputs, rows: Rows, *, distance: Distance = "euclidean") -> Tensor:
    """Minus the distance of the features to ``rows["prototype"]`` (Sabour et al. 2016, for one's own choice of it)."""
    return -_distance(out.features, rows["prototype"], distance)


def away_from_prototype(out: Outputs, rows: Rows, *, distance: Distance = "euclidean") -> Tensor:
    """The distance of the features to ``rows["prototype"]``."""
    return _distance(out.features, rows["prototype"], distance)


@dataclass(frozen=True, eq=False)
class PrototypeDifference:
    """The distance to the prototype of the label minus that to the nearest other prototype.

    ``prototypes`` (classes, d) holds one prototype for each class. The loss is positive exactly when the nearest
    prototype is that of another class, as :func:`logit_difference` is for the logits.
    """

    prototypes: Tensor
    distance: Distance = "euclidean"

    def __post_init__(self) -> None:
        _check_distance(self.distance)
        if self.prototypes.ndim != 2 or len(self.prototypes) < 2:
            raise ValueError(
                f"prototypes have shape {tuple(self.prototypes.shape)} but one row of features for each of at least "
                "two classes is needed; see class_means"
            )

    def __call__(self, out: Outputs, rows: Rows) -> Tensor:
        """The loss of each sample, (b,)."""
        distances = self.distances(out.features)
        y = rows.y[:, None]
        nearest = distances.scatter(1, y, torch.inf).amin(1)
        return distances.gather(1, y).squeeze(1) - nearest

    def distances(self, features: Tensor) -> Tensor:
        """(b, classes) the distance to every prototype; the nearest-prototype read-out has minus these as scores."""
        return _distance(features[:, None], self.prototypes.to(features)[None], self.distance)


def _distance(features: Tensor, prototype: Tensor, distance: Distance) -> Tensor:
    _check_distance(distance)
    if features.shape[-1] != prototype.shape[-1]:
        raise ValueError(
            f"features have {features.shape[-1]} dimensions and prototypes {prototype.shape[-1]}; "
            "compute the prototypes from the same layer"
        )
    if distance == "cosine":
        return 1 - (unit(features) * unit(prototype)).sum(-1)
    return (features - prototype).square().sum(-1)


def _check_distance(distance: str) -> None:
    if distance not in get_args(Distance):
        raise ValueError(f"distance is {distance!r} but it must be one of {', '.join(get_args(Distance))}")
