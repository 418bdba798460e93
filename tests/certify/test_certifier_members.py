"""The conformance test of certifiers: what every file of the folder must fulfil, found by file name.

Certifiers of networks, which have a field ``model``, are also compared with closed forms and with an attack.
"""

import dataclasses
import inspect
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast import certify, members
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Certificate
from holdfast.geometry import NORMS, Threat
from holdfast.models.classifier import Classifier
from holdfast.models.heads.linear import Linear
from holdfast.models.own import Own
from holdfast.recipes.build import build
from holdfast.recipes.tables.certify import BOUND, bind, certifier_table, read_certifier
from holdfast.rng import Rng

MEMBERS = members.names(certify)
FIELDS = {name: {f.name: f for f in dataclasses.fields(members.member(certify, name))} for name in MEMBERS}
NETWORKS = [name for name in MEMBERS if "model" in FIELDS[name]]
DUAL = {"linf": 1, "l2": 2, "l1": inf}  # |w·d| is at most the length of d times that of w in the dual norm
SHAPE, CLASSES = (1, 2, 4), 3

each = pytest.mark.parametrize("name", MEMBERS)
each_of_networks = pytest.mark.parametrize("name", NETWORKS)


def inputs(rng: Rng, n: int = 12) -> Tensor:
    """Inputs in the middle of [0, 1], so that the box does not matter to the nearest adversarial example."""
    return 0.4 + 0.2 * rng.fork("x").uniform(torch.empty(n, *SHAPE))


def affine(rng: Rng) -> nn.Module:
    """An affine classifier whose classes meet at the center of the inputs."""
    linear = nn.Linear(8, CLASSES)
    linear.weight.data = rng.fork("affine").normal(torch.empty(CLASSES, 8))
    linear.bias.data = -0.5 * linear.weight.data.sum(1)
    return nn.Sequential(nn.Flatten(), linear)


def relu_network(rng: Rng) -> nn.Module:
    """A ReLU network, as a recipe builds it: normalize, encoder and head."""
    hidden, head = nn.Linear(8, 16), Linear(16, CLASSES)
    for part in (hidden, head):
        part.weight.data = rng.fork(str(part)).normal(part.weight) / 3
    model = Classifier(nn.Sequential(nn.Flatten(), hidden, nn.ReLU()), head)
    with torch.no_grad():  # so that every class is predicted for some inputs
        head.bias.data = -model(inputs(rng.fork("center"), 100)).mean(0)
    return model


KINDS: dict[str, Callable[[Rng], nn.Module]] = {
    "affine": affine,
    "relu": relu_network,
    "own": lambda rng: Own(affine(rng)),  # as networks of [models] are given
}
on_each = pytest.mark.parametrize("kind", KINDS)


def made(name: str, model: nn.Module, rng: Rng) -> Any:
    """The certifier with its default settings; what is not a network gets points and labels."""
    points = inputs(rng.fork("points"), 30)
    given = {"model": model, "points": points, "labels": torch.arange(30) % CLASSES}
    return members.member(certify, name)(**{key: value for key, value in given.items() if key in FIELDS[name]})


@torch.no_grad()
def predicted(certifier: Any, x: Tensor) -> Tensor:
    """The labels that the certified classifier predicts; of a smoothed network, those after many noisy copies."""
    if hasattr(certifier, "sigma"):
        noise = certifier.sigma * Rng(7).normal(torch.empty(20_000, *x.shape[1:]))
        return torch.stack([certifier.model(one + noise).argmax(1).mode().values for one in x])
    return certifier.predict(x) if hasattr(certifier, "predict") else certifier.model(x).argmax(1)


def certified(certifier: Any, x: Tensor, rng: Rng) -> Certificate:
    return certifier(x, rng=rng.at(torch.arange(len(x))))


def assert_same(found: Certificate, expected: Certificate) -> None:
    assert torch.equal(found.label, expected.label)
    torch.testing.assert_close(found.radius, expected.radius, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.upper, expected.upper, rtol=1e-6, atol=1e-9)


def state(model: nn.Module) -> list[object]:
    """Everything a certifier could leave changed."""
    modules = [(m.training, list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]
    grads = [(p.requires_grad, p.dtype, None if p.grad is None else p.grad.tolist()) for p in model.parameters()]
    return [modules, grads, [value.tolist() for value in model.state_dict().values()], torch.is_grad_enabled()]


def test_the_folder_has_the_certifier_of_nearest_neighbors() -> None:
    assert "neighbors" in MEMBERS
    assert "neighbors" not in NETWORKS


@each
def test_a_file_holds_one_frozen_dataclass_named_like_the_file(name: str) -> None:
    cls = members.member(certify, name)
    assert cls.__name__.lower() == name.replace("_", "")
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in FIELDS[name].values())
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # the docstring that dataclass generates
    parameters = inspect.signature(cls.__call__).parameters
    assert list(parameters) == ["self", "x", "rng"]
    assert parameters["rng"].kind is inspect.Parameter.KEYWORD_ONLY


@each
def test_the_norm_is_one_of_the_package(name: str, rng: Rng) -> None:
    norm = made(name, affine(rng), rng).norm
    assert norm == NORMS[norm.name]


@each
@on_each
def test_radii_and_upper_bounds_hold_for_the_predicted_label(name: str, kind: str, rng: Rng) -> None:
    certifier, x = made(name, KINDS[kind](rng), rng), inputs(rng)
    found, label = certified(certifier, x, rng), predicted(certifier, x)
    abstains = found.label == -1
    assert (abstains | (found.label == label)).all()
    assert (found.radius[abstains] == 0).all()
    assert (found.radius >= 0).all()  # and so not NaN
    assert (found.upper >= found.radius).all()
    assert (found.radius > 0).any(), "a certifier that proves nothing proves nothing about itself"
    assert {tuple(value.shape) for value in (found.label, found.radius, found.upper)} == {(len(x),)}
    assert not any(value.requires_grad for value in (found.radius, found.upper))


@each
def test_a_result_does_not_depend_on_the_other_samples(name: str, rng: Rng) -> None:
    certifier, x = made(name, relu_network(rng), rng), inputs(rng)
    together = certified(certifier, x, rng)
    for order in (torch.arange(12), torch.randperm(12, generator=rng.generator())):
        parts = [certifier(x[which], rng=rng.at(which)) for which in order.split(5)]
        joined = [torch.cat([getattr(part, key) for part in parts]) for key in ("label", "radius", "upper")]
        assert_same(
            Certificate(*joined), Certificate(together.label[order], together.radius[order], together.upper[order])
        )


@each
@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_single_batches(name: str, n: int, rng: Rng) -> None:
    found = certified(made(name, affine(rng), rng), inputs(rng)[:n], rng)
    assert [len(value) for value in (found.label, found.radius, found.upper)] == [n, n, n]


@each
def test_randomness_comes_from_the_rng_alone(name: str, rng: Rng) -> None:
    certifier, x = made(name, relu_network(rng), rng), inputs(rng)
    kept, state = x.clone(), torch.get_rng_state()
    first = certified(certifier, x, rng)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert_same(certified(certifier, x, rng), first)
    torch.set_rng_state(state)
    assert torch.equal(x, kept)


@each
def test_works_inside_no_grad(name: str, rng: Rng) -> None:
    certifier, x = made(name, relu_network(rng), rng), inputs(rng)
    expected = certified(certifier, x, rng)
    with torch.no_grad():
        assert_same(certified(certifier, x, rng), expected)


@each_of_networks
def test_leaves_the_model_unchanged(name: str, rng: Rng) -> None:
    model = nn.Sequential(*affine(rng), nn.Identity()).train()
    model[0].eval()  # a mixture of modes
    model[1].bias.requires_grad_(False)
    model[1].weight.grad = torch.ones_like(model[1].weight)
    before = state(model)
    certified(made(name, model, rng), inputs(rng), rng)
    assert state(model) == before


@each_of_networks
def test_the_radius_is_at_most_the_distance_to_the_boundary_of_an_affine_classifier(name: str, rng: Rng) -> None:
    model, x = affine(rng), inputs(rng, 100)
    certifier = made(name, model, rng)
    if "points" in FIELDS[name]:
        pytest.skip("its boundary is between points and not that of the affine classifier")
    found, weight = certified(certifier, x, rng), model[1].weight.detach().double()
    logits = x.flatten(1).double() @ weight.T + model[1].bias.detach()
    apart = torch.linalg.vector_norm(weight[:, None] - weight, DUAL[certifier.norm.name], dim=2)
    label = logits.argmax(1)
    distance = (logits.gather(1, label[:, None]) - logits) / apart[label]  # 0/0 for the label itself
    assert (found.radius <= distance.nan_to_num(inf).amin(1) * (1 + 1e-6)).all()


@each_of_networks
@on_each
def test_no_attack_succeeds_within_the_radius(name: str, kind: str, rng: Rng) -> None:
    model, x = KINDS[kind](rng), inputs(rng)
    certifier = made(name, model, rng)
    found = certified(certifier, x, rng)
    attack = PGD(threat=Threat(certifier.norm, 0.0), steps=20, restarts=2)
    for one, label, radius in zip(x.split(1), found.label.split(1), found.radius.tolist(), strict=True):
        if 0 < radius < inf:
            x_adv = attack.at(radius * (1 - 1e-6))(model, one, label, rng=rng)
            assert torch.equal(predicted(certifier, x_adv), label)


@each_of_networks
def test_settings_have_defaults_and_recipes_write_them_back(name: str, rng: Rng) -> None:
    """A recipe is read before there is a network, and its settings do not depend on the network."""
    required = {key for key, f in FIELDS[name].items() if f.init and f.default is f.default_factory}
    assert required == {"model"}
    read = read_certifier("mine", name)
    table = certifier_table(bind(read, affine(rng)))
    assert table == certifier_table(read)
    assert certifier_table(read_certifier("mine", table)) == table
    assert set(table) == {"name", *(key for key, f in FIELDS[name].items() if f.init)} - {*BOUND}
    with pytest.raises(ValueError, match="but a recipe has no way to write it"):
        build(members.member(certify, name), {"model": "net"}, "certificates.mine")
