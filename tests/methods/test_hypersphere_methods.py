"""Methods on a hypersphere head against the losses of the paper written out: margin in training, none in crafting."""

from functools import partial

import by_hand
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Rows
from holdfast.losses.classification import cross_entropy
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.cure import CURE
from holdfast.methods.llr import LLR
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.models.classifier import Classifier
from holdfast.models.heads.hypersphere import Hypersphere

S, M = 12.0, 0.3


def network(margin=M):
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), Hypersphere(3, 3, scale=S, margin=margin))
    by_hand.fill(model)
    return model


def cosines(model, x):
    z = torch.tanh(F.linear(x, model.encoder[0].weight, model.encoder[0].bias))
    return F.normalize(z) @ F.normalize(model.head.weight).T


def he(c, y):
    """HE(x) of the paper: cross entropy of s·(c - m·1y)."""
    return F.cross_entropy(S * (c - M * F.one_hot(y, 3).double()), y)


def stub():
    return by_hand.Shift(threat=by_hand.threat())


@pytest.mark.parametrize("method", [Plain(), ALP(attack=stub()), LLR(attack=stub())])
def test_a_head_that_does_not_make_the_logits_is_refused(method, rng):
    model = Classifier(nn.Sequential(Hypersphere(4, 5), nn.Tanh()), nn.Linear(5, 3)).double()
    with pytest.raises(ValueError, match=r"layer with 5 outputs but 3 logits; .* place of the last layer$"):
        method(model, by_hand.samples(), progress=0.5, rng=rng)


def test_plain_and_adversarial(rng):
    model, batch = network(), by_hand.samples()
    plain = Plain()(model, batch, progress=0.5, rng=rng).total
    assert plain.item() == pytest.approx(he(cosines(model, batch.x), batch.y).item(), rel=1e-12)
    total = Adversarial(attack=stub())(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx(he(cosines(model, by_hand.shifted(batch.x)), batch.y).item(), rel=1e-12)


def test_alp_pairs_unscaled_cosines(rng):
    model, batch = network(), by_hand.samples()
    clean, moved = cosines(model, batch.x), cosines(model, by_hand.shifted(batch.x))
    expected = 0.5 * he(clean, batch.y) + 0.5 * he(moved, batch.y) + 0.7 * F.mse_loss(clean, moved)
    total = ALP(attack=stub(), weight=0.7)(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx(expected.item(), rel=1e-12)


def test_trades_has_the_margin_in_its_cross_entropy_only(rng):
    model, batch = network(), by_hand.samples()
    clean, moved = S * cosines(model, batch.x), S * cosines(model, by_hand.shifted(batch.x))
    divergence = F.kl_div(moved.log_softmax(1), clean.softmax(1), reduction="batchmean")
    total = TRADES(attack=stub(), beta=6.0)(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx((he(clean / S, batch.y) + 6 * divergence).item(), rel=1e-12)


@pytest.mark.parametrize("make", [lambda: LLR(attack=stub()), CURE, lambda: TLA(attack=stub(), noise="none")])
def test_other_terms_do_not_know_the_margin(make, rng):
    """Only the cross entropy does: gap, curvature and triplet are those of the same model without a margin."""
    batch, method = by_hand.samples(), make()
    with_margin, without = (method(network(m), batch, progress=0.5, rng=rng) for m in (M, 0.0))
    for part in with_margin.parts:
        same = with_margin.parts[part].item() == pytest.approx(without.parts[part].item(), rel=1e-12)
        assert same == (part != "cross_entropy"), part


def climbed(model, batch, margin, steps=3, step=0.04):
    x_adv = batch.x
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        z = S * (cosines(model, x_adv) - margin * F.one_hot(batch.y, 3).double())
        (grad,) = torch.autograd.grad(F.cross_entropy(z, batch.y, reduction="sum"), x_adv)
        x_adv = (x_adv + step * grad.sign()).clamp(batch.x - by_hand.EPS, batch.x + by_hand.EPS).clamp(0, 1)
    return x_adv.detach()


def test_crafting_has_no_margin_unless_its_loss_is_given_one(rng):
    model, batch = network(), by_hand.samples()
    free = PGD(threat=by_hand.threat(), steps=3, step=0.04, start="clean", keep="last")
    kept = PGD(
        threat=by_hand.threat(),
        steps=3,
        step=0.04,
        start="clean",
        keep="last",
        loss=partial(cross_entropy, margin=S * M),
    )
    for attack, margin in ((free, 0.0), (kept, M)):
        x_adv = Adversarial(attack=attack)(model, batch, progress=1.0, rng=rng).seen[-1].x
        torch.testing.assert_close(x_adv, climbed(model, batch, margin), rtol=0, atol=1e-12)


def test_the_loss_of_unscaled_cosines_is_a_temperature(rng):
    model, batch = network(), by_hand.samples()
    out = model.outputs(batch.x)
    found = cross_entropy(out, Rows(batch.y, batch.index), temperature=S)
    expected = F.cross_entropy(cosines(model, batch.x), batch.y, reduction="none")
    torch.testing.assert_close(found, expected)
