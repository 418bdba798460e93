"""The linear head, and hypersphere embedding compared with loops and a direct implementation."""

import inspect
import pkgutil
from importlib import import_module
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Rows
from holdfast.crafting.view import crafting
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.models import heads
from holdfast.models.classifier import Classifier, adapt
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.models.heads.linear import Linear
from holdfast.rng import Rng

MEMBERS = [module.name for module in pkgutil.iter_modules(heads.__path__) if not module.name.startswith("_")]
NORMS = ("differentiable", "projected", "none")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)  # weights are initialized by torch's global generator


@pytest.fixture
def features(rng: Rng) -> Tensor:
    return 3 * rng.fork("features").normal(torch.empty(6, 5, dtype=torch.float64))


def member(name: str) -> type[nn.Module]:
    module = import_module(f"{heads.__name__}.{name}")
    public = {key: it for key, it in vars(module).items() if not key.startswith("_")}
    (found,) = (it for it in public.values() if inspect.isclass(it) and it.__module__ == module.__name__)
    assert issubclass(found, nn.Module)
    return found


def sphere(**options: object) -> Hypersphere:
    return Hypersphere(5, 3, **options).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_head_maps_features_to_logits(name: str, rng: Rng) -> None:
    made = member(name)
    assert made.__name__.lower() == name
    assert made.__doc__
    head = made(7, 4)
    for mode in (True, False):
        assert head.train(mode)(rng.normal(torch.empty(5, 7))).shape == (5, 4)
    assert head(torch.empty(0, 7)).shape == (0, 4)
    model = adapt(nn.Sequential(nn.Flatten(), head))
    x = rng.normal(torch.empty(5, 7))
    assert torch.equal(model.outputs(x).features, x)  # adapt finds it as the last linear layer


def test_the_linear_head_is_a_torch_linear_layer() -> None:
    ours = Linear(5, 3)
    torch.manual_seed(0)
    theirs = nn.Linear(5, 3)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours(torch.ones(2, 5)), theirs(torch.ones(2, 5)))


@pytest.mark.parametrize("weight_norm", ["differentiable", "projected"])
@pytest.mark.parametrize("scale", [1.0, 15.0])
def test_logits_are_scaled_cosines(weight_norm: str, scale: float, features: Tensor) -> None:
    head = sphere(scale=scale, weight_norm=weight_norm)
    weights = head.weight.tolist()
    found = head(features)
    for i, z in enumerate(features.tolist()):
        for k, w in enumerate(weights):
            dot = sum(a * b for a, b in zip(z, w, strict=True))
            lengths = sqrt(sum(a * a for a in z)) * sqrt(sum(b * b for b in w))
            assert found[i, k].item() == pytest.approx(scale * dot / lengths, rel=1e-12)
    assert head.bias is None


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.1, 100), st.sampled_from(NORMS[:2]))
def test_logits_are_bounded_and_invariant_to_lengths(z: float, w: float, scale: float, norm: str) -> None:
    head, features = sphere(scale=scale, weight_norm=norm), Rng(3).normal(torch.empty(6, 5, dtype=torch.float64))
    logits = head(features)
    assert logits.abs().max() <= scale * (1 + 1e-12)
    head.weight.data *= w
    torch.testing.assert_close(head(z * features), logits, rtol=1e-9, atol=1e-9)


def test_a_feature_along_a_weight_has_the_largest_logit() -> None:
    head = sphere(scale=8.0)
    torch.testing.assert_close(head(head.weight.detach()).diagonal(), torch.full((3,), 8.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"feature_norm": False}, lambda z, w: 10 * z @ F.normalize(w).T),
        ({"feature_norm": False, "weight_norm": "projected"}, lambda z, w: 10 * z @ F.normalize(w).T),
        ({"weight_norm": "none"}, lambda z, w: 10 * F.normalize(z) @ w.T),
        ({"feature_norm": False, "weight_norm": "none", "scale": 1.0}, lambda z, w: z @ w.T),
    ],
)
def test_parts_can_be_disabled(options: dict[str, object], expected, features: Tensor) -> None:
    head = sphere(**options)
    weight = head.weight.detach().clone()
    torch.testing.assert_close(head(features), expected(features, weight))


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_gradients_agree_with_a_direct_implementation(margin: float, features: Tensor) -> None:
    """Cross entropy of s·(cos - m·1y), with gradients through both normalizations."""
    head, y = sphere(scale=15.0, margin=margin), torch.tensor([0, 1, 2, 2, 1, 0])
    z, w = features.clone().requires_grad_(), head.weight.detach().clone().requires_grad_()
    out = adapt(head).outputs(z)
    loss = cross_entropy(out, Rows(y, torch.arange(6)), margin=head.scale * head.margin).sum()
    ours = torch.autograd.grad(loss, (z, head.weight))
    cosine = (z / z.norm(dim=1, keepdim=True)) @ (w / w.norm(dim=1, keepdim=True)).T
    cosine = cosine - margin * F.one_hot(y, 3).double()
    direct = -(15 * cosine).log_softmax(1)[torch.arange(6), y].sum()
    theirs = torch.autograd.grad(direct, (z, w))
    assert loss.item() == pytest.approx(direct.item(), rel=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    torch.testing.assert_close(
        (ours[1] * head.weight).sum(1), torch.zeros(3, dtype=torch.float64)
    )  # no radial component
    assert torch.autograd.gradcheck(head, (features.clone().requires_grad_(),))


def test_projected_weights_have_unit_length_and_no_gradient_through_the_projection(features: Tensor) -> None:
    head, plain = sphere(weight_norm="projected"), sphere(weight_norm="none")
    before = head.weight.detach().clone()
    head.eval()(features)
    assert torch.equal(head.weight, before)  # eval mode does not change the weights
    head.train()(features)
    torch.testing.assert_close(head.weight.detach(), F.normalize(before))
    plain.weight.data = head.weight.data.clone()
    weights = torch.linspace(-1, 1, 18).reshape(6, 3).double()
    (ours,) = torch.autograd.grad((head(features) * weights).sum(), head.weight)
    (theirs,) = torch.autograd.grad((plain(features) * weights).sum(), plain.weight)
    torch.testing.assert_close(ours, theirs)
    assert (ours * head.weight).sum(1).abs().min() > 1e-3  # a radial component, which the next projection removes


def test_two_passes_of_a_step_can_be_differentiated_with_projection(features: Tensor) -> None:
    head = sphere(weight_norm="projected").train()
    z = features.clone().requires_grad_()
    first = head(z)
    second = head(2 * z)
    (first.sum() + second.sum()).backward()
    assert head.weight.grad is not None
    assert z.grad is not None


@pytest.mark.parametrize("norm", NORMS)
def test_zero_features_have_zero_logits_and_finite_gradients(norm: str) -> None:
    head, z = Hypersphere(5, 3, weight_norm=norm), torch.zeros(2, 5, requires_grad=True)  # type: ignore[arg-type]
    logits = head(z)
    assert torch.equal(logits, torch.zeros(2, 3))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(logits.square().sum(), (z, head.weight)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale is 0.0 but logits are scale times cosines"),
        ({"scale": -1.0}, "scale is -1.0 but logits are"),
        ({"scale": float("inf")}, "scale is inf but logits are"),
        ({"margin": 1.0}, r"margin is 1.0 but it is taken off a cosine; use a number in \[0, 1\)"),
        ({"margin": -0.1}, "margin is -0.1 but"),
        ({"margin": float("nan")}, "margin is nan but"),
        ({"weight_norm": "yes"}, "weight_norm is 'yes' but must be one of differentiable, projected, none"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, object], message: str) -> None:
    for make in (sphere, lambda **o: Hypersphere.instead_of(nn.Linear(5, 3), **o)):
        with pytest.raises(ValueError, match=message) as refusal:
            make(**options)
        assert "\n" not in str(refusal.value)


def test_instead_of_replaces_a_linear_layer() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    old = net[3]
    net[3] = Hypersphere.instead_of(old, scale=7.0, margin=0.1, weight_norm="projected")
    assert net[3].weight is old.weight
    assert (net[3].scale, net[3].margin, net[3].weight_norm) == (7.0, 0.1, "projected")


@pytest.mark.parametrize("layer", [nn.Conv2d(5, 3, 1), nn.Sequential(nn.Linear(5, 3))])
def test_instead_of_refuses_other_layers(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"the layer is a {type(layer).__name__} but .* the place of a linear one"):
        Hypersphere.instead_of(layer)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_attacks_fold_the_head_and_keep_its_features(wrapped: bool, norm: str, rng: Rng) -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    head = Hypersphere(5, 3, weight_norm=norm)  # type: ignore[arg-type]
    model = Classifier(body, head) if wrapped else nn.Sequential(body, head)
    x = rng.uniform(torch.empty(4, 6))
    model.train()(rng.fork("train").uniform(torch.empty(9, 6)))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with crafting(model, rng) as view:
        out = view.outputs(x)
        assert view._fast is not None  # type: ignore[attr-defined]
    model.eval()
    torch.testing.assert_close(out.logits, model(x))
    torch.testing.assert_close(out.features, body(x))
    model.train()
    PGD(threat=Threat(LInf(), 0.1), steps=2)(model, x, torch.tensor([0, 1, 2, 0]), rng=rng)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
