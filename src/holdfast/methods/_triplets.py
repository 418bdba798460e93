"""Negatives for triplets: clean images of another class."""

from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Cost
from holdfast.crafting.view import frozen
from holdfast.losses.metric import nearest_negative, random_negative
from holdfast.rng import Rng

Negative = Literal["nearest", "random"]


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
    """An image of the pool for every anchor; the nearest is searched in eval mode."""
    pool = batch.pool
    if pool is None:
        raise ValueError("this batch has no pool; build it as the method's `needs` asks")
    if search == "random":
        chance = rng.uniform(anchors.new_empty(len(batch), len(pool)))
        return pool.x[random_negative(chance, batch.y, pool.y)]
    with torch.no_grad(), frozen(model, rng) as view:
        near = view.outputs(anchors.detach(), layer).features
        far = view.outputs(pool.x, layer).features
    return pool.x[nearest_negative(near, batch.y, far, pool.y, signed=signed)]


def search_cost(batch: Batch, search: Negative = "nearest") -> Cost:
    """Anchors and pool are embedded once more to find the nearest; a random negative needs no look."""
    pool = 0 if batch.pool is None else len(batch.pool)
    return Cost(len(batch) + pool) if search == "nearest" else Cost()


def positives(batch: Batch) -> Tensor:
    """The images of the same class that came with the batch."""
    if batch.positive is None:
        raise ValueError("this batch has no positives; build it as the method's `needs` asks")
    return batch.positive
