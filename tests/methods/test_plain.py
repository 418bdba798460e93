import math

import by_hand
import pytest
import torch
from torch import nn

from holdfast.contracts import Batch, Needs
from holdfast.methods.plain import Plain


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_total_is_the_mean_cross_entropy(smoothing, rng):
    model, batch = by_hand.network(), by_hand.samples()
    terms = Plain(smoothing=smoothing)(model, batch, progress=0.5, rng=rng)
    expected = by_hand.cross_entropy(by_hand.logits(model, batch.x), batch.y, smoothing)
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)
    assert terms.parts == {"cross_entropy": terms.total}


def test_hand_computed_example(rng):
    batch = Batch(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]), torch.arange(2))
    expected = (math.log(1 + math.exp(-1)) + math.log(2)) / 2
    assert Plain()(nn.Identity(), batch, progress=0.0, rng=rng).total.item() == pytest.approx(expected, rel=1e-6)


def test_needs_neither_positives_nor_a_pool():
    assert Plain().needs == Needs()
