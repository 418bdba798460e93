"""Every member of methods/: the shape of its file, and what the contract promises of its loss."""

import copy
import dataclasses
import importlib
import inspect
import math
import pkgutil
from importlib.util import find_spec

import by_hand
import pytest
import torch
from torch import nn

import holdfast.methods
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Needs
from holdfast.methods.adversarial import Adversarial
from holdfast.models.classifier import Classifier
from holdfast.rng import Rng

FILES = [m.name for m in pkgutil.iter_modules(holdfast.methods.__path__) if not m.name.startswith("_")]
NOISY = {"tla"}  # draws noise by position, so twice the batch is other noise
if find_spec("pytorch_metric_learning") is None:
    FILES.remove("metric")  # it cannot be made without; test_metric_terms makes it with a stand-in


def public(name):
    """The public classes that the file defines."""
    module = importlib.import_module(f"holdfast.methods.{name}")
    defined = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    return [c for c in defined if not c.__name__.startswith("_")]


def build(name, attack):
    [made] = public(name)
    wanted = inspect.signature(made).parameters
    if "method" in wanted:
        return made(method=Adversarial(attack=attack))
    return made(attack=attack) if "attack" in wanted else made()


def stubbed(name):
    return build(name, by_hand.Shift(threat=by_hand.threat()))


def pgd(keep="last"):
    return PGD(threat=by_hand.threat(), steps=3, keep=keep)


def crafting():
    return [name for name in FILES if {"attack", "method"} & set(inspect.signature(public(name)[0]).parameters)]


def trainable(model, method):
    own = list(method.parameters()) if isinstance(method, nn.Module) else []
    return [*model.parameters(), *own]


def test_the_walk_finds_the_methods():
    assert {"plain", "adversarial", "alp", "tla", "trades", "llr", "cure"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_one_documented_method(name):
    [made] = public(name)
    frozen = dataclasses.is_dataclass(made) and made.__dataclass_params__.frozen
    assert frozen or issubclass(made, nn.Module)
    assert made.__doc__
    assert not made.__doc__.startswith(f"{made.__name__}(")  # what dataclass writes when nobody did


@pytest.mark.parametrize("name", FILES)
def test_all_settings_but_the_attack_or_the_method_inside_have_defaults_and_keywords(name):
    settings = inspect.signature(public(name)[0]).parameters.values()
    assert all(s.kind is s.KEYWORD_ONLY for s in settings)
    assert {s.name for s in settings if s.default is s.empty} <= {"attack", "method"}


@pytest.mark.parametrize("name", FILES)
def test_needs_are_stated(name):
    assert isinstance(stubbed(name).needs, Needs)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("network", [by_hand.network, by_hand.batch_norm_network])
def test_total_is_a_finite_scalar_whose_gradient_reaches_all_parameters(name, network, rng):
    model, method = network(), build(name, pgd())
    terms = method(model, by_hand.samples(), progress=0.5, rng=rng)
    assert terms.total.shape == ()
    assert all(part.shape == () and part.isfinite() for part in [terms.total, *terms.parts.values()])
    terms.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable(model, method))
    moved = [p.grad.abs().sum() > 0 for p in trainable(model, method)]
    # in front of batch norm a bias has no effect, so no gradient
    assert sum(moved) >= len(moved) - (network is by_hand.batch_norm_network)


@pytest.mark.parametrize("name", FILES)
def test_a_small_step_against_the_gradient_lowers_the_total_as_the_gradient_says(name, rng):
    model, method = by_hand.network(), stubbed(name)
    gained, promised = by_hand.descend(model, method, trainable(model, method), rng)
    assert gained > 0
    assert gained == pytest.approx(promised, rel=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_same_rng_same_result_whatever_torch_drew_before(name):
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    totals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        totals.append(method(model, batch, progress=0.5, rng=Rng(3)).total)
    assert torch.equal(*totals)


@pytest.mark.parametrize("name", FILES)
def test_another_rng_matters_to_those_that_draw(name):
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    totals = [method(model, batch, progress=0.5, rng=Rng(seed)).total for seed in (3, 4)]
    assert torch.equal(*totals) == (name not in crafting())


@pytest.mark.parametrize("name", FILES)
def test_the_model_is_left_as_found_but_for_the_averages_of_batch_norm(name, rng):
    model = by_hand.batch_norm_network()
    model.encoder[0].bias.requires_grad_(False)
    model.head.eval()
    flags, modes = [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]
    weights, drawn = copy.deepcopy(list(model.parameters())), torch.get_rng_state()
    build(name, pgd())(model, by_hand.samples(), progress=0.5, rng=rng)
    assert [p.requires_grad for p in model.parameters()] == flags
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@dataclasses.dataclass(frozen=True)
class Replay:
    """Gives the inputs that another attack made, without the model."""

    x_adv: torch.Tensor
    threat = by_hand.threat()
    keep = "last"

    def at(self, eps):
        return self

    def with_loss(self, loss, start):
        return self

    def __call__(self, model, x, y, *, rng, watch=None):
        return self.x_adv


@pytest.mark.parametrize("name", crafting())
def test_crafting_does_not_move_the_averages_of_batch_norm(name, rng):
    """Nor does it see batch statistics: PGD inside the method finds what it finds on the model in eval mode."""
    batch, models = by_hand.samples(), [by_hand.batch_norm_network() for _ in range(2)]
    made = []

    class Noted(PGD):
        def __call__(self, *args, **options):
            before = copy.deepcopy(models[0].state_dict())
            made.append(super().__call__(*args, **options))
            assert all(torch.equal(before[key], value) for key, value in models[0].state_dict().items())
            return made[-1]

    noted = Noted(threat=by_hand.threat(), steps=3, keep="last")
    first = build(name, noted)(models[0], batch, progress=0.5, rng=rng)
    second = build(name, Replay(made[0]))(models[1], batch, progress=0.5, rng=rng)
    assert torch.equal(first.total, second.total)
    left, right = (m.state_dict() for m in models)
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("name", crafting())
def test_an_attack_that_stops_at_the_first_success_is_refused(name):
    with pytest.raises(ValueError, match="stops at the boundary"):
        build(name, pgd(keep="fooled"))


@pytest.mark.parametrize("name", sorted(set(FILES) - NOISY))
def test_the_total_is_a_mean_so_duplicating_the_batch_changes_nothing(name, rng):
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    once, twice = (method(model, b, progress=0.5, rng=rng).total.item() for b in (batch, by_hand.duplicated(batch)))
    assert once == pytest.approx(twice, rel=1e-12)


@pytest.mark.parametrize("name", FILES)
def test_any_module_will_do(name, rng):
    model = by_hand.network()
    assert isinstance(model, Classifier)
    plain = nn.Sequential(*model.encoder, model.head)
    totals = [build(name, pgd())(m, by_hand.samples(), progress=0.5, rng=rng).total.item() for m in (model, plain)]
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)
    assert math.isfinite(totals[0])
