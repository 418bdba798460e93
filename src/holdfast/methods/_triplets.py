"""Positives and negatives for triplet terms: clean samples of the same class and of another class."""

from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Cost
from holdfast.crafting.view import crafting
from holdfast.losses.metric import nearest_negative, random_negative
from holdfast.rng import Rng

Negative = Literal["nearest", "random"]


def positives(batch: Batch) -> Tensor:
    """One sample of the same class for each sample of the batch."""
    if batch.positive is None:
        raise ValueError(
            "this batch has no positives; give Batch(x, y, index, positive=..., pool=...), with another sample of the "
            "same class for each sample, or take the batches of holdfast.batches"
        )
    return batch.positive


def negatives(
    model: nn.Module,
    batch: Batch,
    anchors: Tensor,
    rng: Rng,
    *,
    search: Negative = "nearest",
    layer: str | None = None,
    signed: bool = False,
) -> Tensor:
    """One sample of another class for each anchor, from the pool of the batch.

    The nearest one is searched among features at ``layer``, computed in eval mode and as fast as in crafting: a pool
    may have ten times as many samples as the batch, and its features only decide which sample is taken.
    """
    pool = batch.pool
    if pool is None:
        raise ValueError(
            "this batch has no pool; give Batch(x, y, index, positive=..., pool=...), where pool is a Batch of samples "
            "among which negatives are searched, or take the batches of holdfast.batches"
        )
    if search == "random":
        chance = rng.uniform(anchors.new_empty(len(batch), len(pool)))
        return pool.x[random_negative(chance, batch.y, pool.y)]
    with torch.no_grad(), crafting(model, rng, passes=1) as view:
        features = view.outputs(anchors.detach(), layer).features
        pool_features = view.outputs(pool.x, layer).features
    return pool.x[nearest_negative(features, batch.y, pool_features, pool.y, signed=signed)]


def search_cost(batch: Batch, search: Negative = "nearest") -> Cost:
    """The search for the nearest takes one forward pass of anchors and pool; a random choice takes none."""
    pool = 0 if batch.pool is None else len(batch.pool)
    return Cost(len(batch) + pool) if search == "nearest" else Cost()
