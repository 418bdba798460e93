"""Linear bounds against exhaustive enumeration, closed forms, samples and attacks, over random architectures."""

from itertools import product
from math import inf

import numpy as np
import pytest
import torch
from bounded_networks import CLASSES, LAYERS, SHAPE, network, points
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from holdfast.attacks.pgd import PGD
from holdfast.certify._bounds.certifier import margin_rows
from holdfast.certify._bounds.network import convert
from holdfast.certify._bounds.propagate import Bounds
from holdfast.certify._bounds.region import Region, Signed
from holdfast.certify.crown import CROWN
from holdfast.certify.ibp import IBP
from holdfast.geometry import NORMS, Threat
from holdfast.models.classifier import Classifier
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

architectures = st.lists(st.sampled_from(sorted(LAYERS)), min_size=0, max_size=4)
heads = st.sampled_from(["linear", "hypersphere"])
norms = st.sampled_from(["linf", "l2"])
each_norm = pytest.mark.parametrize("norm", ["linf", "l2"])


def images(rng: Rng, n: int = 3) -> Tensor:
    return rng.fork("images").uniform(torch.empty(n, *SHAPE))


def small_relu_net(rng: Rng, hidden: int = 5) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    for name, value in model.named_parameters():
        value.data = rng.fork(name).normal(torch.empty_like(value))
    return model


def exact_margins(model: nn.Sequential, region: Region, label: int) -> Tensor:
    """The smallest margins of a label over a linf region, by a linear program for each sign pattern of the ReLUs."""
    first, last = (model[i].weight.detach().double().numpy() for i in (0, 2))
    shift, last_shift = (model[i].bias.detach().double().numpy() for i in (0, 2))
    low, high = (bound[0].numpy() for bound in region.interval)
    least = np.full(CLASSES, inf)
    for pattern in product([0.0, 1.0], repeat=len(first)):
        on = np.array(pattern)
        sign = 1 - 2 * on  # W x + b >= 0 where on, <= 0 elsewhere
        for other in set(range(CLASSES)) - {label}:
            row = (last[label] - last[other]) * on
            found = linprog(row @ first, sign[:, None] * first, -sign * shift, bounds=list(zip(low, high, strict=True)))
            if found.success:
                value = found.fun + row @ shift + last_shift[label] - last_shift[other]
                least[other] = min(least[other], value)
    return torch.tensor(least)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([1e-4, 0.05, 0.3]))
def test_bounds_are_below_the_exact_minimum_of_all_activation_patterns(seed: int, radius: float) -> None:
    rng = Rng(seed)
    model, x = small_relu_net(rng), rng.fork("x").uniform(torch.empty(1, 2, dtype=torch.float64))
    net = convert(model, x)
    region = Region(x, torch.tensor([radius], dtype=torch.float64), "linf", (0.0, 1.0))
    bounds, label = Bounds(net, region), torch.tensor([0])
    lower = bounds.lower(net.output, margin_rows(label, CLASSES))[0, 1:]
    exact = exact_margins(model, region, 0)[1:]
    assert (lower <= exact + 1e-9).all()
    inputs = bounds.intervals[1]
    if ((inputs.low > 0) | (inputs.high < 0)).all():  # no activation is in doubt, so the bound is the minimum
        torch.testing.assert_close(lower, exact, rtol=1e-4, atol=1e-5)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), steps=st.sampled_from([0, 5]))
def test_no_radius_exceeds_the_exact_one(seed: int, steps: int) -> None:
    rng = Rng(seed)
    model, x = small_relu_net(rng, 4), rng.fork("x").uniform(torch.empty(1, 2))
    found = CROWN(model=model, alpha_steps=steps)(x, rng=rng)
    radius, label = found.radius, int(found.label)
    region = Region(x.double(), radius.clamp_max(1.0), "linf", (0.0, 1.0))
    assert radius == 0 or exact_margins(model, region, label).min() > 0


@settings(max_examples=40)
@given(
    names=architectures, head=heads, norm=norms, seed=st.integers(0, 10**6), radius=st.sampled_from([0.01, 0.1, 0.5])
)
def test_no_point_of_a_region_is_outside_the_bounds(
    names: list[str], head: str, norm: str, seed: int, radius: float
) -> None:
    rng = Rng(seed)
    model, x = network(names, head, rng), images(rng)
    net = convert(model, x)
    region = Region(x.double(), torch.full((3,), radius, dtype=torch.float64), norm, (0.0, 1.0))
    rows = margin_rows(torch.tensor([0, 1, 2]), CLASSES)
    for intermediate in ("crown", "ibp"):
        bounds = Bounds(net, region, intermediate)  # type: ignore[arg-type]
        for i in range(3):
            tried = points(x[i], radius, norm, rng.fork(str(i)))
            values = net.values(tried.double())
            for index, interval in bounds.intervals.items():
                assert (values[index] >= interval.low[i]).all()
                assert (values[index] <= interval.high[i]).all()
            margins = values[net.output] @ rows[i].T
            assert (margins >= bounds.lower(net.output, rows)[i]).all()
            assert (margins >= bounds.quick_lower(net.output, rows)[i]).all()


@settings(max_examples=15)
@given(names=architectures, head=heads, norm=norms, seed=st.integers(0, 10**6))
def test_no_attack_in_float32_succeeds_within_the_radius(names: list[str], head: str, norm: str, seed: int) -> None:
    rng = Rng(seed)
    model, x = network(names, head, rng), images(rng, 2)
    found = CROWN(model=model, norm=NORMS[norm])(x, rng=rng)
    for one, label, radius in zip(x.split(1), found.label.split(1), found.radius.tolist(), strict=True):
        if radius > 0:
            with torch.no_grad():
                assert torch.equal(model(points(one[0], min(radius, 9.0), norm, rng)).argmax(1), label.expand(40))
            attack = PGD(threat=Threat(NORMS[norm], min(radius, 9.0) * (1 - 1e-6)), steps=20)
            assert torch.equal(model(attack(model, one, label, rng=rng)).argmax(1), label)


@settings(max_examples=10)
@given(names=architectures, norm=norms, seed=st.integers(0, 10**6))
def test_crown_is_at_least_as_tight_as_intervals_and_optimized_slopes_as_crown(
    names: list[str], norm: str, seed: int
) -> None:
    rng = Rng(seed)
    model, x = network(names, "linear", rng), images(rng)
    net, label = convert(model, x), torch.tensor([0, 1, 2])
    region = Region(x.double(), torch.full((3,), 0.05, dtype=torch.float64), norm, (0.0, 1.0))
    found = [
        certifier.proved(net, region, label)
        for certifier in (
            IBP(model=model),
            CROWN(model=model, intermediate="ibp"),
            CROWN(model=model),
            CROWN(model=model, alpha_steps=3),
        )
    ]
    assert (found[0] <= found[1]).all()
    assert (found[1] <= found[2] + 1e-9).all() or (found[0] <= found[2]).all()
    assert (found[2] <= found[3]).all()


@each_norm
def test_optimized_slopes_prove_more(norm: str, rng: Rng) -> None:
    model, x = network(["conv", "relu", "conv", "relu"], "linear", rng), images(rng, 4)
    plain, alpha = (CROWN(model=model, norm=NORMS[norm], alpha_steps=n)(x, rng=rng).radius for n in (0, 20))
    assert (alpha > 1.01 * plain).any()


@each_norm
def test_the_radius_of_an_affine_network_is_the_distance_to_its_boundary(norm: str, rng: Rng) -> None:
    body = [LAYERS[name](2) for name in ("conv", "batch_norm", "average", "arithmetic", "strided")]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(18, CLASSES)).eval()
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point() and not name.endswith("running_var"):
            value.data = rng.fork(name).normal(value)
    x = 0.4 + 0.2 * images(rng, 5)
    with torch.no_grad():  # classes meet within the images, so that the box does not matter
        model[-1].bias -= model(x).mean(0)
    found = CROWN(model=model, norm=NORMS[norm], tolerance=1e-4)(x, rng=rng)
    copy = model.double()
    jacobian = torch.autograd.functional.jacobian(lambda z: copy(z)[0], x[:1].double())[:, 0].flatten(1)
    logits = copy(x.double()).detach()
    apart = torch.linalg.vector_norm(jacobian[:, None] - jacobian, 1 if norm == "linf" else 2, dim=2)
    distance = ((logits.gather(1, found.label[:, None]) - logits) / apart[found.label]).nan_to_num(inf).amin(1)
    assert (found.radius <= distance).all()
    assert (found.radius >= distance * 0.999 - 1e-4).all()


def test_a_hypersphere_head_is_a_linear_layer_of_directions(rng: Rng) -> None:
    model, x = network(["conv", "relu"], "hypersphere", rng), images(rng)
    assert isinstance(model.head, Hypersphere)
    linear = nn.Linear(8, CLASSES, bias=False)
    linear.weight.data = model.head.directions().detach()
    flat = nn.Sequential(model.encoder, linear)
    ours, plain = (CROWN(model=m, tolerance=1e-4)(x, rng=rng) for m in (model, flat))
    assert torch.equal(ours.label, plain.label)
    torch.testing.assert_close(ours.radius, plain.radius, rtol=1e-3, atol=1e-5)


@each_norm
def test_the_minimum_over_ball_and_box_is_exact(norm: str, rng: Rng) -> None:
    """Its oracle is the dual problem in one dimension, solved by bisection."""
    x = rng.fork("x").uniform(torch.empty(20, 6, dtype=torch.float64)).round(decimals=1)
    a = rng.fork("a").normal(torch.empty(20, 4, 6, dtype=torch.float64))
    radius = 2 * rng.fork("r").uniform(torch.empty(20, dtype=torch.float64))
    region = Region(x, radius, norm, (0.0, 1.0))
    low, high = (bound[:, None] - x[:, None] for bound in region.interval)
    if norm == "linf":
        d = torch.where(a > 0, low, high)
    else:
        small, large = torch.zeros(20, 4, 1, dtype=torch.float64), torch.full((20, 4, 1), 1e6, dtype=torch.float64)
        for _ in range(100):
            t = (small + large) / 2
            inside = (-t * a).clamp(low, high).norm(dim=2, keepdim=True) <= radius[:, None, None]
            small, large = torch.where(inside, t, small), torch.where(inside, large, t)
        d = (-small * a).clamp(low, high)
    expected = (a * (x[:, None] + d)).sum(2)
    lower = region.lower(Signed.of(a))
    assert (lower <= expected + 1e-12).all()
    torch.testing.assert_close(lower, expected, rtol=1e-6, atol=1e-6)


def test_a_margin_that_rounding_in_float32_can_change_is_not_certified(rng: Rng) -> None:
    """Logits of 1e8 plus a difference of 1: float32 cannot tell them apart, and calls the first the largest."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight.data = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    model[0].bias.data = torch.full((2,), 1e8)
    x = torch.full((1, 2), 0.5)
    assert model(x).argmax(1) == 0
    for certifier in (CROWN(model=model), IBP(model=model), CROWN(model=model, alpha_steps=2)):
        assert certifier(x, rng=rng).radius == 0


@pytest.mark.parametrize("head", ["linear", "hypersphere"])
def test_a_network_that_overflows_float32_has_no_certificate(head: str, rng: Rng) -> None:
    """The bounds are finite in float64, but the network returns NaN, or cosines of zero."""
    sizes = (1e25, 1e25) if head == "linear" else (1e21, 1.0)
    last = nn.Linear(4, 3) if head == "linear" else Hypersphere(4, 3)
    model = Classifier(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), last).eval()
    for layer, size in zip((model.encoder[0], last), sizes, strict=True):
        layer.weight.data = size * rng.fork(f"{size}").normal(torch.empty_like(layer.weight)).abs()
    x = rng.fork("x").uniform(torch.empty(5, 4))
    found = model(x)
    assert (~found.isfinite() | (found == 0)).all()
    for certifier in (CROWN(model=model), IBP(model=model), CROWN(model=model, alpha_steps=2)):
        assert certifier(x, rng=rng).radius.tolist() == [0] * 5


def test_given_radii_are_the_largest_below_the_searched_one(rng: Rng) -> None:
    model, x = network(["conv", "relu"], "linear", rng), images(rng, 8)
    searched = CROWN(model=model, tolerance=1e-3)(x, rng=rng).radius
    radii = tuple(searched.quantile(torch.tensor([0.8, 0.2, 0.5]).double()).tolist())
    tried = CROWN(model=model, radii=radii)(x, rng=rng).radius
    expected = [max((r for r in radii if r <= found), default=0.0) for found in searched.tolist()]
    assert tried.tolist() == expected
    assert len(set(expected)) > 1


def test_a_prediction_that_never_changes_has_an_infinite_radius(rng: Rng) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model[1].weight.data.zero_()
    model[1].bias.data = torch.tensor([1.0, 0.0])
    for norm in ("linf", "l2"):
        assert CROWN(model=model, norm=NORMS[norm])(torch.full((3, 4), 0.5), rng=rng).radius.tolist() == [inf] * 3
