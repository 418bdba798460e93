"""CURE compared with finite differences."""

import by_hand
import pytest
import torch
from differences import each_loss, input_gradients, parameter_gradients
from torch import nn

from holdfast.contracts import Batch, Cost, Needs
from holdfast.methods.cure import CURE


def thirty_two():
    x = by_hand.fixed(32, 4, seed=1).sigmoid()
    return Batch(x, torch.arange(32) % 3, torch.arange(32) + 50)


def curvatures(model, batch, h):
    """||grad l(x + z) - grad l(x)|| per sample, gradients by finite differences."""
    gradient = input_gradients(model, batch.x, batch.y)
    sign = gradient.sign()
    z = h * sign / sign.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(z.norm(dim=1), torch.full_like(z[:, 0], h))
    return (input_gradients(model, batch.x + z, batch.y) - gradient).square().sum(1).sqrt()


def test_curvature_equals_finite_differences_per_sample(rng):
    model, batch = by_hand.network(), thirty_two()
    terms = CURE(gamma=1.5, h=(0.7,))(model, batch, progress=0.0, rng=rng)
    expected = curvatures(model, batch, 0.7).mean().item()
    entropy = each_loss(model, batch.x, batch.y).mean().item()
    assert terms.parts["curvature"].item() == pytest.approx(expected, rel=1e-6)
    assert terms.total.item() == pytest.approx(entropy + 1.5 * expected, rel=1e-6)


def test_terms_are_means_over_samples_in_a_batch_of_32(rng):
    model, batch, method = by_hand.network(), thirty_two(), CURE(h=(0.5,))
    together = method(model, batch, progress=0.5, rng=rng)
    singles = [Batch(batch.x[i : i + 1], batch.y[i : i + 1], batch.index[i : i + 1]) for i in range(32)]
    alone = [method(model, one, progress=0.5, rng=rng) for one in singles]
    for part in together.parts:
        mean = sum(terms.parts[part].item() for terms in alone) / 32
        assert together.parts[part].item() == pytest.approx(mean, rel=1e-10)


@pytest.mark.parametrize("network", [by_hand.network, lambda: by_hand.batch_norm_network().eval()])
def test_gradient_flows_through_both_input_gradients(network, rng):
    """z is a constant also for the finite differences: their steps are too small to change the sign of a gradient."""
    model, batch, method = network(), by_hand.samples(), CURE(h=(0.5,))
    method(model, batch, progress=1.0, rng=rng).total.backward()
    expected = parameter_gradients(model, lambda: method(model, batch, progress=1.0, rng=rng).total)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-7)


def test_regularizer_uses_batch_norm_in_eval_mode(rng):
    model, batch = by_hand.batch_norm_network().train(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    terms = CURE(h=(0.5,))(model, batch, progress=1.0, rng=rng)
    assert passes.training == [True, False, False]
    assert model.encoder[1].num_batches_tracked == 1
    assert terms.parts["curvature"].item() == pytest.approx(
        curvatures(model.eval(), batch, 0.5).mean().item(), rel=1e-6
    )


@pytest.mark.parametrize(
    ("progress", "length"), [(0.0, 0.1), (0.15, 0.1), (0.2, 0.4), (0.39, 0.4), (0.4, 0.8), (0.6, 0.8), (1.0, 0.8)]
)
def test_h_advances_in_equal_parts_of_warmup_and_then_stays(progress, length):
    assert CURE(h=(0.1, 0.4, 0.8), warmup=0.6).length(progress) == length
    assert CURE(h=(0.1, 0.4, 0.8), warmup=0.0).length(progress) == 0.8


def test_curvature_uses_the_current_h(rng):
    model, batch = by_hand.network(), by_hand.samples()
    early, late = (CURE(h=(0.1, 0.8))(model, batch, progress=p, rng=rng).parts["curvature"] for p in (0.0, 1.0))
    assert early.item() == pytest.approx(curvatures(model, batch, 0.1).mean().item(), rel=1e-6)
    assert late.item() == pytest.approx(curvatures(model, batch, 0.8).mean().item(), rel=1e-6)


def test_zero_gradient_gives_zero_curvature_and_no_nan(rng):
    model, batch = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)).double(), by_hand.samples()
    with torch.no_grad():
        model[0].bias -= 100
    terms = CURE()(model, batch, progress=1.0, rng=rng)
    terms.total.backward()
    assert terms.parts["curvature"] == 0
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -0.5}, "gamma is -0.5 but the weight of a term"),
        ({"h": ()}, r"h is \(\) but it holds one or more lengths above 0"),
        ({"h": (0.1, 0.0)}, r"h is \(0.1, 0.0\) but it holds one or more lengths above 0"),
        ({"warmup": 1.2}, r"warmup is 1.2 but it is a share of training in \[0, 1\]"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CURE(**settings)


def test_needs_nothing_and_costs_three_forward_and_seven_backward_passes(rng):
    assert CURE().needs == Needs()
    assert CURE()(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng).cost == Cost(5 * 3, 5 * 7)
