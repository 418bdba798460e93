"""Triplet losses on features and the choice of negatives (TLA, Mao et al. 2019)."""

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.geometry import TINY, unit


def angular_distance(u: Tensor, v: Tensor) -> Tensor:
    """1 - |cos| of the angle between each row of u and the same row of v."""
    return 1 - (unit(u) * unit(v)).sum(-1).abs()


def triplet(out: Outputs, rows: Rows, *, margin: float) -> Tensor:
    """The hinge [D(anchor, positive) - D(anchor, negative) + margin]_+ with the angular distance D.

    The anchor is ``out.features``; ``rows["positive"]`` and ``rows["negative"]`` hold the other features.
    """
    near = angular_distance(out.features, rows["positive"])
    far = angular_distance(out.features, rows["negative"])
    return (near - far + margin).clamp_min(0)


def nearest_negative(features: Tensor, y: Tensor, pool: Tensor, pool_y: Tensor, *, signed: bool = False) -> Tensor:
    """(b,) for each row of ``features``, the index of the nearest row of ``pool`` with another label.

    Nearest means the largest |cos|, as in the paper, or with ``signed`` the largest cosine, as in the authors' code.
    Rows of the same class are masked out; the code gives them the score 0 instead, so it can choose one of them when
    all other cosines are negative.
    """
    cosine = unit(features) @ unit(pool).T
    score = cosine if signed else cosine.abs()
    return torch.where(_other_class(y, pool_y), score, -torch.inf).argmax(1)


def random_negative(chance: Tensor, y: Tensor, pool_y: Tensor) -> Tensor:
    """(b,) for each label, the index of a random row of the pool with another label.

    ``chance`` (b, pool) holds independent uniform random numbers; the largest one among the other classes decides.
    """
    return torch.where(_other_class(y, pool_y), chance, -torch.inf).argmax(1)


def _other_class(y: Tensor, pool_y: Tensor) -> Tensor:
    other = y[:, None] != pool_y[None]
    if not other.any(1).all():
        raise ValueError("the pool holds no sample of another class for some anchors; use a larger pool")
    return other


def feature_norm(out: Outputs, rows: Rows) -> Tensor:
    """||anchor|| + ||positive|| + ||negative||, the norm term of the TLA paper."""
    parts = (out.features, rows["positive"], rows["negative"])
    return torch.stack([(f.square() + TINY).sum(1).sqrt() for f in parts]).sum(0)


def feature_mean_square(out: Outputs, rows: Rows) -> Tensor:
    """The mean over dimensions of anchor² + positive² + negative², the norm term of the TLA authors' code."""
    parts = (out.features, rows["positive"], rows["negative"])
    return torch.stack([f.square().mean(1) for f in parts]).sum(0)
