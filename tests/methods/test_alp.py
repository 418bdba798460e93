import by_hand
import numpy as np
import pytest
import torch
from torch import nn

from holdfast.contracts import Batch, Needs
from holdfast.methods.alp import ALP


@pytest.mark.parametrize(("weight", "smoothing"), [(0.5, 0.0), (2.0, 0.1), (0.0, 0.1)])
def test_total_is_the_mean_cross_entropy_of_both_halves_plus_the_pairing_term(weight, smoothing, rng):
    model, batch = by_hand.network(), by_hand.samples()
    method = ALP(attack=by_hand.Shift(threat=by_hand.threat()), weight=weight, smoothing=smoothing)
    terms = method(model, batch, progress=0.5, rng=rng)
    clean, adversarial = by_hand.logits(model, batch.x), by_hand.logits(model, by_hand.shifted(batch.x))
    halves = [by_hand.cross_entropy(z, batch.y, smoothing) / 2 for z in (clean, adversarial)]
    pairing = sum((clean[i][k] - adversarial[i][k]) ** 2 for i in range(5) for k in range(3)) / 15
    assert terms.parts["cross_entropy"].item() == pytest.approx(sum(halves), rel=1e-12)
    assert terms.parts["logit_pairing"].item() == pytest.approx(pairing, rel=1e-12)
    assert terms.total.item() == pytest.approx(sum(halves) + weight * pairing, rel=1e-12)


def test_hand_computed_example(rng):
    # the logits are the inputs, so the shift by +0.1 and -0.1 has a mean square of 0.01 for any number of rows
    batch = Batch(torch.full((3, 2), 0.5).double(), torch.tensor([0, 1, 0]), torch.arange(3))
    terms = ALP(attack=by_hand.Shift(threat=by_hand.threat()))(nn.Identity(), batch, progress=0.5, rng=rng)
    assert terms.parts["logit_pairing"].item() == pytest.approx(0.01, rel=1e-9)
    ours, theirs = np.log(1 + np.exp(-0.2)), np.log(1 + np.exp(0.2))
    expected = np.log(2) / 2 + (2 * ours + theirs) / 6 + 0.5 * 0.01
    assert terms.total.item() == pytest.approx(expected, rel=1e-9)


def test_clean_and_adversarial_samples_share_one_pass_and_its_batch_statistics(rng):
    model, batch = by_hand.batch_norm_network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    terms = ALP(attack=by_hand.Shift(threat=by_hand.threat()))(model, batch, progress=0.5, rng=rng)
    [both] = passes.x
    assert torch.equal(both, torch.cat([batch.x, by_hand.shifted(batch.x)]))
    z = by_hand.logits(model, both)
    expected = by_hand.cross_entropy(z, torch.cat([batch.y, batch.y])) + 0.5 * np.mean((z[:5] - z[5:]) ** 2)
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)


def test_needs_neither_positives_nor_a_pool():
    assert ALP(attack=by_hand.Shift(threat=by_hand.threat())).needs == Needs()
