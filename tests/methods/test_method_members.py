"""Conformance of every method: the form of its file, and the contract of its loss."""

import copy
import dataclasses
import inspect
import math
from importlib.util import find_spec

import by_hand
import pytest
import torch
from torch import nn

import holdfast.methods
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Needs
from holdfast.members import member, names
from holdfast.methods.adversarial import Adversarial
from holdfast.models.classifier import Classifier
from holdfast.rng import Rng

FILES = names(holdfast.methods)
if find_spec("pytorch_metric_learning") is None:
    FILES.remove("metric")  # it needs the extra; test_metric_terms covers it with a stand-in


def class_of(name):
    """The class of a method; fails if its file does not define exactly one public class."""
    return member(holdfast.methods, name)


def build(name, attack):
    made = class_of(name)
    wanted = inspect.signature(made).parameters
    if "method" in wanted:
        return made(method=Adversarial(attack=attack))
    return made(attack=attack) if "attack" in wanted else made()


def stubbed(name):
    return build(name, by_hand.Shift(threat=by_hand.threat()))


def pgd(keep="last"):
    return PGD(threat=by_hand.threat(), steps=3, keep=keep)


def crafting():
    return [name for name in FILES if {"attack", "method"} & set(inspect.signature(class_of(name)).parameters)]


def noisy(name):
    """Whether a method draws random numbers of its own, beside those of its attack."""
    model, method, batch = by_hand.network(), stubbed(name), by_hand.samples()
    return not torch.equal(*(method(model, batch, progress=0.5, rng=Rng(seed)).total for seed in (3, 4)))


def trainable(model, method):
    learned = list(method.parameters()) if isinstance(method, nn.Module) else []
    return [*model.parameters(), *learned]


def test_files_are_found():
    assert {"plain", "adversarial", "alp", "tla", "trades", "llr", "cure"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_one_documented_method(name):
    made = class_of(name)
    frozen = dataclasses.is_dataclass(made) and made.__dataclass_params__.frozen
    assert frozen or issubclass(made, nn.Module)
    assert made.__doc__
    assert not made.__doc__.startswith(f"{made.__name__}(")  # the docstring that dataclass generates


@pytest.mark.parametrize("name", FILES)
def test_settings_are_keywords_with_defaults_except_the_attack_or_the_wrapped_method(name):
    settings = inspect.signature(class_of(name)).parameters.values()
    assert all(s.kind is s.KEYWORD_ONLY for s in settings)
    assert {s.name for s in settings if s.default is s.empty} <= {"attack", "method"}


@pytest.mark.parametrize("name", FILES)
def test_method_declares_its_needs(name):
    assert isinstance(stubbed(name).needs, Needs)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("network", [by_hand.network, by_hand.batch_norm_network])
def test_total_is_a_finite_scalar_with_gradients_for_all_parameters(name, network, rng):
    model, method = network(), build(name, pgd())
    terms = method(model, by_hand.samples(), progress=0.5, rng=rng)
    assert terms.total.shape == ()
    assert all(part.shape == () and part.isfinite() for part in [terms.total, *terms.parts.values()])
    terms.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable(model, method))
    moved = [p.grad.abs().sum() > 0 for p in trainable(model, method)]
    # a bias before batch norm has no effect and therefore no gradient
    assert sum(moved) >= len(moved) - (network is by_hand.batch_norm_network)


@pytest.mark.parametrize("name", FILES)
def test_small_gradient_step_lowers_the_total_as_predicted(name, rng):
    model, method = by_hand.network(), stubbed(name)
    gained, promised = by_hand.descend(model, method, trainable(model, method), rng)
    assert gained > 0
    assert gained == pytest.approx(promised, rel=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_result_depends_on_rng_and_not_on_torchs_global_generator(name):
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    totals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        totals.append(method(model, batch, progress=0.5, rng=Rng(3)).total)
    assert torch.equal(*totals)


@pytest.mark.parametrize("name", FILES)
def test_another_rng_changes_the_result_of_methods_that_craft_or_draw(name):
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    totals = [method(model, batch, progress=0.5, rng=Rng(seed)).total for seed in (3, 4)]
    assert torch.equal(*totals) == (name not in crafting() and not noisy(name))


@pytest.mark.parametrize("name", FILES)
def test_model_is_unchanged_except_for_running_averages(name, rng):
    model = by_hand.batch_norm_network()
    model.encoder[0].bias.requires_grad_(False)
    model.head.eval()
    flags, modes = [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]
    weights, state = copy.deepcopy(list(model.parameters())), torch.get_rng_state()
    build(name, pgd())(model, by_hand.samples(), progress=0.5, rng=rng)
    assert [p.requires_grad for p in model.parameters()] == flags
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@dataclasses.dataclass(frozen=True)
class Replay:
    """Returns given adversarial samples without calling the model."""

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
def test_crafting_does_not_update_running_averages(name, rng):
    """A method with the same adversarial samples, but without crafting, ends with the same total and averages."""
    batch, models = by_hand.samples(), [by_hand.batch_norm_network() for _ in range(2)]
    made = []

    class Recorded(PGD):
        def __call__(self, *args, **options):
            before = copy.deepcopy(models[0].state_dict())
            made.append(super().__call__(*args, **options))
            assert all(torch.equal(before[key], value) for key, value in models[0].state_dict().items())
            return made[-1]

    recorded = Recorded(threat=by_hand.threat(), steps=3, keep="last")
    first = build(name, recorded)(models[0], batch, progress=0.5, rng=rng)
    second = build(name, Replay(made[0]))(models[1], batch, progress=0.5, rng=rng)
    assert torch.equal(first.total, second.total)
    left, right = (m.state_dict() for m in models)
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("name", crafting())
def test_attack_that_stops_at_the_first_success_is_refused(name):
    with pytest.raises(ValueError, match="stops at the boundary"):
        build(name, pgd(keep="fooled"))


@pytest.mark.parametrize("name", FILES)
def test_duplicating_the_batch_does_not_change_the_total(name, rng):
    if noisy(name):
        return  # a duplicate gets other random numbers
    model, method, batch = by_hand.network(), build(name, pgd()), by_hand.samples()
    once, twice = (method(model, b, progress=0.5, rng=rng).total.item() for b in (batch, by_hand.duplicated(batch)))
    assert once == pytest.approx(twice, rel=1e-12)


@pytest.mark.parametrize("name", FILES)
def test_any_module_is_accepted(name, rng):
    model = by_hand.network()
    assert isinstance(model, Classifier)
    plain = nn.Sequential(*model.encoder, model.head)
    totals = [build(name, pgd())(m, by_hand.samples(), progress=0.5, rng=rng).total.item() for m in (model, plain)]
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)
    assert math.isfinite(totals[0])
