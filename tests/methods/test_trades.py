"""TRADES compared with a reference written from the paper, and with Python loops."""

import by_hand
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Batch, Cost, Needs
from holdfast.methods.trades import TRADES
from holdfast.rng import Rng


def reference(model, batch, eps, step, steps, beta, rng):
    model.eval()
    noise = rng.fork("craft").fork("start").at(batch.index).at(torch.zeros_like(batch.index)).normal(batch.x)
    x_adv = batch.x + 0.001 * noise
    for _ in range(steps):
        x_adv = x_adv.detach().clamp(0, 1).requires_grad_()
        kl = F.kl_div(model(x_adv).log_softmax(1), model(batch.x).softmax(1), reduction="sum")
        x_adv = x_adv + step * torch.autograd.grad(kl, x_adv)[0].sign()
        x_adv = torch.max(torch.min(x_adv, batch.x + eps), batch.x - eps).clamp(0, 1).detach()
    model.train()
    clean = model(batch.x)
    kl = F.kl_div(model(x_adv).log_softmax(1), clean.softmax(1), reduction="batchmean")
    return F.cross_entropy(clean, batch.y) + beta * kl, x_adv


@pytest.mark.parametrize("network", [by_hand.network, by_hand.batch_norm_network])
@pytest.mark.parametrize("beta", [0.0, 1.0, 6.0])
def test_value_and_gradient_equal_the_reference(network, beta, rng):
    batch, attack = by_hand.samples(), PGD(threat=by_hand.threat(), steps=4, step=0.03, keep="last")
    ours, theirs = network().train(), network().train()
    terms = TRADES(attack=attack, beta=beta)(ours, batch, progress=1.0, rng=rng)
    total, x_adv = reference(theirs, batch, by_hand.EPS, 0.03, 4, beta, rng)
    torch.testing.assert_close(terms.seen[1].x, x_adv, rtol=0, atol=1e-12)
    assert terms.total.item() == pytest.approx(total.item(), rel=1e-12)
    terms.total.backward()
    total.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12)
    # the running averages are compared too: they depend on the order of the clean and the adversarial pass
    left, right = ours.state_dict(), theirs.state_dict()
    assert all(torch.allclose(left[key], right[key]) for key in left)


def test_terms_equal_a_loop(rng):
    model, batch = by_hand.network(), by_hand.samples()
    terms = TRADES(attack=by_hand.Shift(threat=by_hand.threat()), beta=2.0, smoothing=0.1)(
        model, batch, progress=1.0, rng=rng
    )
    clean, moved = by_hand.logits(model, batch.x), by_hand.logits(model, by_hand.shifted(batch.x))
    entropy = by_hand.cross_entropy(clean, batch.y, 0.1)
    divergence = 0.0
    for a, b in zip(clean, moved, strict=True):
        p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
        divergence += sum(s * (np.log(s) - np.log(t)) for s, t in zip(p, q, strict=True)) / len(clean)
    assert terms.parts["cross_entropy"].item() == pytest.approx(entropy, rel=1e-12)
    assert terms.parts["kl_divergence"].item() == pytest.approx(divergence, rel=1e-9)
    assert terms.total.item() == pytest.approx(entropy + 2 * divergence, rel=1e-9)


def test_total_is_the_mean_over_samples_in_a_batch_of_32(rng):
    model = by_hand.network()
    x = by_hand.fixed(32, 4, seed=1).sigmoid()
    batch = Batch(x, torch.arange(32) % 3, torch.arange(32) + 50)
    method = TRADES(attack=PGD(threat=by_hand.threat(), steps=3, keep="last"))
    together = method(model, batch, progress=1.0, rng=rng)
    alone = [
        method(model, Batch(x[i : i + 1], batch.y[i : i + 1], batch.index[i : i + 1]), progress=1.0, rng=rng)
        for i in range(32)
    ]
    torch.testing.assert_close(together.seen[1].x, torch.cat([terms.seen[1].x for terms in alone]), rtol=0, atol=1e-12)
    assert together.total.item() == pytest.approx(sum(terms.total.item() for terms in alone) / 32, rel=1e-12)


def test_gradients_are_finite_where_probabilities_underflow(rng):
    model = by_hand.network()
    with torch.no_grad():
        model.head.weight *= 1e4
    terms = TRADES(attack=PGD(threat=by_hand.threat(), steps=2, keep="last"))(
        model, by_hand.samples(), progress=1.0, rng=rng
    )
    terms.total.backward()
    assert terms.seen[0].logits.softmax(1).min() == 0
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_clean_prediction_costs_one_pass_and_not_one_per_step(rng):
    model = by_hand.network()
    passes = by_hand.Passes().watch(model)
    terms = TRADES(attack=PGD(threat=by_hand.threat(), steps=3, keep="last"))(
        model, by_hand.samples(), progress=1.0, rng=rng
    )
    assert passes.training == [False] * 4 + [True] * 2
    assert terms.cost == Cost(forwards=5 * 6, backwards=5 * 5)


@pytest.mark.parametrize("beta", [-1.0, float("nan"), float("inf")])
def test_beta_out_of_range_is_refused(beta):
    with pytest.raises(ValueError, match=f"beta is {beta} but the weight of a term is a finite number of zero or more"):
        TRADES(attack=by_hand.Shift(threat=by_hand.threat()), beta=beta)


def test_needs_nothing_and_defaults_are_those_of_cifar10():
    method = TRADES(attack=by_hand.Shift(threat=by_hand.threat()))
    assert method.needs == Needs()
    assert method.beta == 6


def test_another_rng_gives_other_adversarial_samples():
    model, method = by_hand.network(), TRADES(attack=PGD(threat=by_hand.threat(), steps=1, step=0.01, keep="last"))
    found = [method(model, by_hand.samples(), progress=1.0, rng=Rng(seed)).seen[1].x for seed in (0, 1)]
    assert not torch.equal(*found)
