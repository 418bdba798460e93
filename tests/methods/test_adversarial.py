import by_hand
import pytest
import torch

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Needs
from holdfast.methods.adversarial import Adversarial


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_total_is_the_cross_entropy_of_the_adversarial_samples(smoothing, rng):
    model, batch, attack = by_hand.network(), by_hand.samples(), by_hand.Shift(threat=by_hand.threat())
    terms = Adversarial(attack=attack, smoothing=smoothing)(model, batch, progress=0.5, rng=rng)
    expected = by_hand.cross_entropy(by_hand.logits(model, by_hand.shifted(batch.x)), batch.y, smoothing)
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)
    assert terms.parts == {"cross_entropy": terms.total}


def test_attack_receives_labels_and_data_set_indices(rng):
    batch, attack = by_hand.samples(), by_hand.Shift(threat=by_hand.threat())
    Adversarial(attack=attack)(by_hand.network(), batch, progress=0.5, rng=rng)
    [(_, rows)] = attack.seen
    assert torch.equal(rows.y, batch.y)
    assert torch.equal(rows.index, batch.index)


def test_loss_is_larger_than_on_clean_samples(rng):
    model, batch = by_hand.network(), by_hand.samples()
    attack = PGD(threat=by_hand.threat(0.3), steps=5, keep="last")
    clean = by_hand.cross_entropy(by_hand.logits(model, batch.x), batch.y)
    assert Adversarial(attack=attack)(model, batch, progress=1.0, rng=rng).total > clean


def test_random_start_of_a_sample_does_not_depend_on_its_place_in_the_batch(rng):
    model, batch = by_hand.network(), by_hand.samples()
    flipped = type(batch)(batch.x.flip(0), batch.y.flip(0), batch.index.flip(0))
    method = Adversarial(attack=PGD(threat=by_hand.threat(), steps=2, keep="last"))
    totals = [method(model, b, progress=1.0, rng=rng).total.item() for b in (batch, flipped)]
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)


def test_needs_neither_positives_nor_a_pool():
    assert Adversarial(attack=by_hand.Shift(threat=by_hand.threat())).needs == Needs()
