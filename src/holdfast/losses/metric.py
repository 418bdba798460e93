"""Losses on where features lie relative to each other (TLA, Mao et al. 2019)."""

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.geometry import TINY, unit


def angular_distance(u: Tensor, v: Tensor, *, signed: bool = False) -> Tensor:
    """1 - |cos| of the angle between rows of u and v; ``signed`` drops the absolute value."""
    cosine = (unit(u) * unit(v)).sum(-1)
    return 1 - (cosine if signed else cosine.abs())


def triplet(out: Outputs, rows: Rows, *, margin: float, signed: bool = False) -> Tensor:
    """[D(anchor, positive) - D(anchor, negative) + margin]_+ with angular distance D.

    The anchor is ``out.features``; ``rows["positive"]`` and ``rows["negative"]`` hold the other features.
    """
    near = angular_distance(out.features, rows["positive"], signed=signed)
    far = angular_distance(out.features, rows["negative"], signed=signed)
    return (near - far + margin).clamp_min(0)


def nearest_negative(features: Tensor, y: Tensor, pool: Tensor, pool_y: Tensor, *, signed: bool = False) -> Tensor:
    """(b,) the pool row of another class with the smallest angular distance to each feature.

    The paper searches by |cos|, the TLA code by the signed cosine. Same-class rows are masked out, so one is never
    chosen (the code scores them 0 and can choose one when every other cosine is negative).
    """
    cosine = unit(features) @ unit(pool).T
    score = cosine if signed else cosine.abs()
    return torch.where(_other_class(y, pool_y), score, -torch.inf).argmax(1)


def random_negative(chance: Tensor, y: Tensor, pool_y: Tensor) -> Tensor:
    """(b,) a pool row of another class for each label, uniform when ``chance`` (b, pool) is."""
    return torch.where(_other_class(y, pool_y), chance, -torch.inf).argmax(1)


def _other_class(y: Tensor, pool_y: Tensor) -> Tensor:
    other = y[:, None] != pool_y[None]
    if not other.any(1).all():
        raise ValueError("the pool holds no sample of another class for some anchors; use a larger pool")
    return other


def feature_norm(out: Outputs, rows: Rows) -> Tensor:
    """||anchor|| + ||positive|| + ||negative||: the norm term of the paper."""
    parts = (out.features, rows["positive"], rows["negative"])
    return torch.stack([(f.square() + TINY).sum(1).sqrt() for f in parts]).sum(0)


def feature_mean_square(out: Outputs, rows: Rows) -> Tensor:
    """Mean over dimensions of anchor² + positive² + negative²: the norm term of the TLA code."""
    parts = (out.features, rows["positive"], rows["negative"])
    return torch.stack([f.square().mean(1) for f in parts]).sum(0)
