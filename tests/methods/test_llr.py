"""LLR compared with finite differences, a loop for its inner maximization, and batch norm computed by hand."""

import by_hand
import pytest
import torch
from differences import each_loss, input_gradients, numeric_gradient, parameter_gradients
from torch import nn
from torch.nn import functional as F

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Batch, Cost, Needs
from holdfast.methods.llr import LLR
from holdfast.models.classifier import Classifier


def stub(**settings):
    return LLR(attack=by_hand.Shift(threat=by_hand.threat()), **settings)


def thirty_two():
    x = by_hand.fixed(32, 4, seed=1).sigmoid() * 0.8 + 0.1
    return Batch(x, torch.arange(32) % 3, torch.arange(32) + 50)


def test_gap_and_slope_equal_finite_differences_per_sample(rng):
    model, batch = by_hand.network(), thirty_two()
    terms = stub(lambda1=3.0, mu=0.5)(model, batch, progress=1.0, rng=rng)
    moved = by_hand.shifted(batch.x)
    along = ((moved - batch.x) * input_gradients(model, batch.x, batch.y)).sum(1)
    gap = (each_loss(model, moved, batch.y) - each_loss(model, batch.x, batch.y) - along).abs().mean().item()
    slope, entropy = along.abs().mean().item(), each_loss(model, batch.x, batch.y).mean().item()
    assert gap > 1e-4
    assert terms.parts["linearity_gap"].item() == pytest.approx(gap, rel=1e-6)
    assert terms.parts["slope"].item() == pytest.approx(slope, rel=1e-6)
    assert terms.parts["cross_entropy"].item() == pytest.approx(entropy, rel=1e-12)
    assert terms.total.item() == pytest.approx(entropy + 3 * gap + 0.5 * slope, rel=1e-6)


def test_slope_norm_is_the_l2_norm_of_the_gradient(rng):
    model, batch = by_hand.network(), thirty_two()
    terms = stub(slope="norm")(model, batch, progress=1.0, rng=rng)
    lengths = input_gradients(model, batch.x, batch.y).square().sum(1).sqrt()
    assert terms.parts["slope"].item() == pytest.approx(lengths.mean().item(), rel=1e-6)


def test_mu_zero_leaves_the_gap_alone(rng):
    model, batch = by_hand.network(), by_hand.samples()
    alone, both = (stub(mu=mu)(model, batch, progress=1.0, rng=rng) for mu in (0.0, 0.6))
    expected = alone.parts["cross_entropy"] + 2 * alone.parts["linearity_gap"]
    assert alone.total.item() == pytest.approx(expected.item(), rel=1e-12)
    assert both.total.item() == pytest.approx((expected + 0.6 * alone.parts["slope"]).item(), rel=1e-12)


def test_terms_are_means_over_samples_in_a_batch_of_32(rng):
    model, batch = by_hand.network(), thirty_two()
    method = LLR(attack=PGD(threat=by_hand.threat(), steps=3, keep="last"))
    together = method(model, batch, progress=1.0, rng=rng)
    singles = [Batch(batch.x[i : i + 1], batch.y[i : i + 1], batch.index[i : i + 1]) for i in range(32)]
    alone = [method(model, one, progress=1.0, rng=rng) for one in singles]
    torch.testing.assert_close(together.seen[1].x, torch.cat([t.seen[1].x for t in alone]), rtol=0, atol=1e-12)
    for part in together.parts:
        mean = sum(terms.parts[part].item() for terms in alone) / 32
        assert together.parts[part].item() == pytest.approx(mean, rel=1e-10)


@pytest.mark.parametrize("network", [by_hand.network, by_hand.batch_norm_network])
@pytest.mark.parametrize("slope", ["dot", "norm"])
def test_gradient_flows_through_everything_but_d(network, slope, rng):
    """Through grad l(x), and with batch norm through the clean batch statistics that the perturbed pass uses."""
    model, batch = network().train(), by_hand.samples()
    method = stub(slope=slope, mu=0.7)
    method(model, batch, progress=1.0, rng=rng).total.backward()
    expected = parameter_gradients(model, lambda: method(model, batch, progress=1.0, rng=rng).total)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-7)


def test_clean_gradient_flows_through_the_batch_statistics(rng):
    """As in the authors' code grad l(x) includes the path through the statistics; the perturbed pass reuses them."""
    model, batch = by_hand.batch_norm_network().train(), by_hand.samples()
    terms = stub()(model, batch, progress=1.0, rng=rng)
    gradient = numeric_gradient(lambda x: each_loss(model, x, batch.y).sum(), batch.x)
    hidden = F.linear(batch.x, model.encoder[0].weight, model.encoder[0].bias).detach()
    moved = F.linear(by_hand.shifted(batch.x), model.encoder[0].weight, model.encoder[0].bias).detach()
    norm = model.encoder[1]
    features = (moved - hidden.mean(0)) / (hidden.var(0, correction=0) + norm.eps).sqrt() * norm.weight + norm.bias
    loss = F.cross_entropy(model.head(features), batch.y, reduction="none")
    along = ((by_hand.shifted(batch.x) - batch.x) * gradient).sum(1)
    gap = (loss - each_loss(model, batch.x, batch.y) - along).abs().mean()
    assert terms.parts["linearity_gap"].item() == pytest.approx(gap.item(), rel=1e-6)
    torch.testing.assert_close(terms.seen[1].features, features)


def climbed(model, batch, steps, step, rng):
    """The inner maximization as a loop, on a copy in eval mode that has the clean batch statistics as its averages."""
    start = rng.fork("craft").fork("start").at(batch.index).at(torch.zeros_like(batch.index))
    x = batch.x.clone().requires_grad_()
    clean = F.cross_entropy(model(x), batch.y, reduction="none")
    (gradient,) = torch.autograd.grad(clean.sum(), x)
    fixed = by_hand.batch_norm_network().eval()
    hidden = F.linear(batch.x, model.encoder[0].weight, model.encoder[0].bias).detach()
    fixed.encoder[1].running_mean, fixed.encoder[1].running_var = hidden.mean(0), hidden.var(0, correction=0)
    x_adv = (batch.x + by_hand.EPS * (2 * start.uniform(batch.x) - 1)).clamp(0, 1)
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        loss = F.cross_entropy(fixed(x_adv), batch.y, reduction="none")
        gap = (loss - clean.detach() - ((x_adv - batch.x) * gradient).sum(1)).abs()
        moved = x_adv + step * torch.autograd.grad(gap.sum(), x_adv)[0].sign()
        x_adv = moved.clamp(batch.x - by_hand.EPS, batch.x + by_hand.EPS).clamp(0, 1)
    return x_adv.detach()


def test_attack_maximizes_the_gap_from_a_random_start_with_clean_batch_statistics(rng):
    model, batch = by_hand.batch_norm_network().train(), by_hand.samples()
    attack = PGD(threat=by_hand.threat(), steps=5, step=0.04, keep="last", start="near")  # LLR replaces the start
    terms = LLR(attack=attack)(model, batch, progress=1.0, rng=rng)
    torch.testing.assert_close(terms.seen[1].x, climbed(model, batch, 5, 0.04, rng), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["steepest", "adam"])
def test_more_steps_find_larger_gaps(rule, rng):
    model, batch = by_hand.network(), thirty_two()
    found = []
    for steps in (1, 15):
        attack = PGD(threat=by_hand.threat(0.3), steps=steps, step=0.05, keep="last", rule=rule)
        found.append(LLR(attack=attack)(model, batch, progress=1.0, rng=rng).parts["linearity_gap"].item())
    assert found[1] > 1.2 * found[0]


@pytest.mark.parametrize("folds", [True, False])
def test_running_averages_move_as_in_one_clean_training_pass(folds, rng):
    def network():
        torch.manual_seed(0)
        body = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Softplus(), *([] if folds else [nn.Dropout(0.0)])]
        return Classifier(nn.Sequential(*body), nn.Linear(6, 3)).double().train()

    model, plain, batch = network(), network(), by_hand.samples()
    attack = PGD(threat=by_hand.threat(), steps=2, keep="last")
    for _ in range(2):
        LLR(attack=attack)(model, batch, progress=1.0, rng=rng)
        plain(batch.x)
    ours, theirs = model.state_dict(), plain.state_dict()
    assert all(torch.allclose(ours[key], theirs[key], rtol=1e-12) for key in ours)
    assert "forward" not in vars(model.encoder[1])


def test_batch_norm_in_eval_mode_uses_its_running_averages(rng):
    model, batch = by_hand.batch_norm_network().eval(), by_hand.samples()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    terms = stub()(model, batch, progress=1.0, rng=rng)
    torch.testing.assert_close(terms.seen[1].logits, model(by_hand.shifted(batch.x)))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_cost_includes_the_double_backward_of_the_clean_gradient(rng):
    terms = LLR(attack=PGD(threat=by_hand.threat(), steps=3, keep="last"))(
        by_hand.network(), by_hand.samples(), progress=1.0, rng=rng
    )
    assert terms.cost == Cost(forwards=5 * (3 + 2), backwards=5 * (3 + 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda1": -1.0}, "lambda1 is -1.0 but the weight of a term"),
        ({"mu": float("nan")}, "mu is nan but the weight of a term"),
        ({"slope": "cosine"}, "slope is 'cosine' but it must be one of dot, norm"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        stub(**settings)


def test_needs_nothing_and_defaults_are_those_of_the_authors_code():
    assert stub().needs == Needs()
    assert (stub().lambda1, stub().mu) == (4 / 2, 4 * 0.3 / 2)
