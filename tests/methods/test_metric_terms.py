"""Metric terms around any method: triplet, and the losses of pytorch-metric-learning."""

import copy
import sys
from dataclasses import replace

import by_hand
import pytest
import torch

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Needs, Terms
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.metric import Metric
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.methods.triplet import Triplet
from metric_learning_stub import Proxies, install

SETTINGS = {"num_classes": 3, "embedding_size": 3, "double": True}


def pgd():
    return PGD(threat=by_hand.threat(), steps=3, keep="last")


@pytest.fixture
def library(monkeypatch):
    install(monkeypatch)


def proxies(**settings):
    torch.manual_seed(0)
    given = {"loss": "Proxies", "settings": SETTINGS, "method": Plain()}
    return Metric(**(given | settings))


@pytest.mark.parametrize("network", [by_hand.network, by_hand.batch_norm_network])
def test_triplet_around_adversarial_training_equals_tla_without_noise(network, rng):
    batch = by_hand.samples()
    ours, theirs = network(), network()
    composed = Triplet(method=Adversarial(attack=pgd()), lambda1=0.7, lambda2=0.01, margin=0.2, pool=7)
    tla = TLA(attack=pgd(), lambda1=0.7, lambda2=0.01, margin=0.2, pool=7, noise="none")
    first, second = composed(ours, batch, progress=1.0, rng=rng), tla(theirs, batch, progress=1.0, rng=rng)
    assert first.total.item() == pytest.approx(second.total.item(), rel=1e-12)
    assert first.parts.keys() == second.parts.keys()
    assert first.cost == second.cost
    first.total.backward()
    second.total.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert all(torch.allclose(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


@pytest.mark.parametrize("method", [Plain(), ALP(attack=pgd()), TRADES(attack=pgd())])
def test_triplet_term_uses_the_last_training_pass_of_the_method(method, rng):
    model, batch = by_hand.network(), by_hand.samples()
    alone = method(model, batch, progress=1.0, rng=rng)
    terms = Triplet(method=method, margin=0.3, pool=7)(model, batch, progress=1.0, rng=rng)
    anchor, positive = by_hand.embed(model, alone.seen[-1].x), by_hand.embed(model, batch.positive)
    pool = by_hand.embed(model, batch.pool.x)
    chosen = by_hand.nearest(anchor, batch.y, pool, batch.pool.y)
    hinge = by_hand.triplet(anchor, positive, pool[chosen], 0.3)
    size = by_hand.norm_term(anchor, positive, pool[chosen], "length")
    assert terms.parts["triplet"].item() == pytest.approx(hinge, rel=1e-9)
    assert terms.parts["triplet_norm"].item() == pytest.approx(size, rel=1e-9)
    expected = alone.total.item() + 0.5 * hinge + 0.001 * size
    assert terms.total.item() == pytest.approx(expected, rel=1e-9)
    assert {name: part.item() for name, part in alone.parts.items()}.items() <= {
        name: part.item() for name, part in terms.parts.items()
    }.items()


def test_needs_cover_the_term_and_the_wrapped_method():
    assert Triplet(method=Plain()).needs == Needs(positive=True, pool=50, features=True)
    assert Triplet(method=TLA(attack=pgd(), pool=80)).needs == Needs(positive=True, pool=80, features=True)


@pytest.mark.parametrize("name", ["lambda1", "lambda2"])
def test_weights_and_pool_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is -1 but the weight of a term"):
        Triplet(method=Plain(), **{name: -1})
    with pytest.raises(ValueError, match="pool is 0 but negatives are drawn"):
        Triplet(method=Plain(), pool=0)


def without_passes(model, batch, *, progress, rng):
    return Terms(torch.zeros(()), {})


@pytest.mark.parametrize("make", [lambda: Triplet(method=without_passes), lambda: proxies(method=without_passes)])
def test_method_that_does_not_return_its_passes_is_refused(make, library, rng):
    with pytest.raises(ValueError, match="the wrapped method does not return its training passes"):
        make()(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)


@pytest.mark.parametrize(("inside", "seen"), [(Plain(), 1), (TRADES(attack=pgd()), 2), (ALP(attack=pgd()), 2)])
def test_library_loss_is_computed_on_the_features_of_every_pass(inside, seen, library, rng):
    model, batch = by_hand.network(), by_hand.samples()
    method = proxies(method=inside, weight=0.3)
    alone, terms = (m(model, batch, progress=1.0, rng=rng) for m in (inside, method))
    assert len(alone.seen) == seen
    points = torch.cat([torch.from_numpy(by_hand.embed(model, out.x.detach())) for out in alone.seen])
    away = (points - method.term.proxies.detach()[batch.y.repeat(seen)]).square().sum(1).mean()
    assert terms.parts["metric"].item() == pytest.approx(away.item(), rel=1e-9)
    assert terms.total.item() == pytest.approx(alone.total.item() + 0.3 * away.item(), rel=1e-9)
    assert terms.cost == alone.cost
    assert method.needs == replace(inside.needs, features=True)


def test_miner_selects_the_pairs(library, rng):
    model, batch = by_hand.network(), by_hand.samples()
    method = proxies(miner="First", miner_settings={"many": 1})
    terms = method(model, batch, progress=1.0, rng=rng)
    first = torch.from_numpy(by_hand.embed(model, batch.x[:1])) - method.term.proxies.detach()[batch.y[:1]]
    assert terms.parts["metric"].item() == pytest.approx(first.square().sum().item(), rel=1e-9)


def test_parameters_of_the_loss_are_trained_and_saved(library, rng):
    model, batch, method = by_hand.network(), by_hand.samples(), proxies()
    method(model, batch, progress=1.0, rng=rng).total.backward()
    assert [name for name, _ in method.named_parameters()] == ["term.proxies"]
    assert all(p.grad.abs().sum() > 0 for p in [*method.parameters(), *model.parameters()])
    other = proxies()
    with torch.no_grad():
        other.term.proxies.zero_()
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.term.proxies, method.term.proxies)
    twin = copy.deepcopy(method)
    assert twin.term.proxies is not method.term.proxies
    assert torch.equal(
        twin(model, batch, progress=1.0, rng=rng).total, method(model, batch, progress=1.0, rng=rng).total
    )


def test_terms_can_be_nested(library, rng):
    inner = proxies()
    both = proxies(method=Triplet(method=proxies(method=inner), pool=7))
    direct = proxies(method=inner)
    assert len(list(direct.parameters())) == 2
    terms = both(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)
    assert {"cross_entropy", "triplet", "metric"} <= terms.parts.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "Proxys"}, r"unknown name 'Proxys' among the losses of .*; did you mean 'Proxies'\? known: Proxies$"),
        ({"loss": "torch"}, "unknown name 'torch' among the losses of pytorch-metric-learning; known: Proxies$"),
        ({"miner": "Last"}, "unknown name 'Last' among the miners of pytorch-metric-learning; known: First$"),
        ({"settings": {}}, r"Proxies cannot be made with the settings \{\} \(.*num_classes"),
        ({"settings": {"size": 1}}, r"Proxies cannot be made with the settings \{'size': 1\}"),
        ({"weight": -1.0}, "weight is -1.0 but the weight of a term"),
    ],
)
def test_unsuitable_settings_are_refused_in_one_sentence(settings, message, library):
    with pytest.raises(ValueError, match=message) as refusal:
        proxies(**settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("size", "given"), [("embedding_size", 64), ("num_classes", 2)])
def test_sizes_that_do_not_fit_the_model_are_refused_in_one_sentence(size, given, library, rng):
    method = proxies(settings=SETTINGS | {size: given})
    with pytest.raises(ValueError, match=f"^Proxies has {size} = {given} but this model needs 3; change its settings$"):
        method(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"settings": SETTINGS | {"power": "two"}, "miner": "First"},
            r"^Proxies cannot compute with the settings \{.*'power': 'two'\} \(.*\); change them$",
        ),
        (
            {"miner": "First", "miner_settings": {"many": "all"}},
            r"^First cannot compute with the settings \{'many': 'all'\} \(.*\); change them$",
        ),
    ],
)
def test_settings_that_fail_on_a_batch_are_named(settings, message, library, rng):
    method = proxies(**settings)
    with pytest.raises(ValueError, match=message):
        method(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)


ERRORS = [KeyError("bins"), ZeroDivisionError("by zero"), AssertionError(), NotImplementedError(), RuntimeError("a\nb")]


@pytest.mark.parametrize("error", [*ERRORS, IndexError("out of range"), AttributeError("no bins")], ids=repr)
@pytest.mark.parametrize("when", ["__init__", "forward"])
def test_errors_of_the_library_become_one_sentence(when, error, library, rng, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Proxies, when, fail)
    reason = str(error).partition("\n")[0] or type(error).__name__
    doing = {"__init__": "be made", "forward": "compute"}[when]
    with pytest.raises(ValueError, match=rf"^Proxies cannot {doing} with .*\({reason}\); change them$"):
        proxies()(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)


@pytest.mark.parametrize("error", [MemoryError("full"), torch.OutOfMemoryError("full")], ids=repr)
def test_out_of_memory_is_not_blamed_on_the_settings(error, library, rng, monkeypatch):
    def fail(*_):
        raise error

    method = proxies()
    monkeypatch.setattr(Proxies, "forward", fail)
    with pytest.raises(type(error), match="full"):
        method(by_hand.network(), by_hand.samples(), progress=1.0, rng=rng)


def test_error_lists_only_losses_that_can_be_used():
    pytest.importorskip("pytorch_metric_learning.losses")
    with pytest.raises(ValueError, match="known: ") as refusal:
        Metric(method=Plain(), loss="?")
    offered = str(refusal.value).partition("known: ")[2].split(", ")
    assert {"ContrastiveLoss", "ProxyAnchorLoss", "NPairsLoss"} <= set(offered)
    parts = {"BaseMetricLossFunction", "BaseLossWrapper", "WeightRegularizerMixin", "GenericPairLoss"}
    assert not {*parts, "CrossBatchMemory", "MultipleLosses", "SelfSupervisedLoss"} & set(offered)


def test_missing_extra_is_named_with_the_command_to_install_it(monkeypatch):
    # both names: where the package is installed, its modules may be imported already
    for name in ("pytorch_metric_learning", "pytorch_metric_learning.losses"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"ContrastiveLoss needs the package pytorch-metric-learning, .*metric\]'$"):
        Metric(method=Plain())


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "ContrastiveLoss", "settings": {"neg_margin": 0.5}},
        {"loss": "NPairsLoss"},
        {"loss": "MultiSimilarityLoss", "miner": "MultiSimilarityMiner", "miner_settings": {"epsilon": 0.2}},
        {"loss": "ProxyAnchorLoss", "settings": {"num_classes": 3, "embedding_size": 3}},
    ],
    ids=lambda settings: settings["loss"],
)
def test_term_equals_the_loss_of_the_library(settings, rng):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    model, batch, inside = by_hand.network(), by_hand.samples(), TRADES(attack=pgd())
    method = Metric(method=inside, weight=2.0, **settings).double()
    terms = method(model, batch, progress=1.0, rng=rng)
    passes = inside(model, batch, progress=1.0, rng=rng)
    features, y = torch.cat([out.features for out in passes.seen]), batch.y.repeat(2)
    term = getattr(losses, settings["loss"])(**settings.get("settings", {})).double()
    term.load_state_dict(method.term.state_dict())
    pairs = None
    if "miner" in settings:
        from pytorch_metric_learning import miners

        pairs = getattr(miners, settings["miner"])(**settings["miner_settings"])(features, y)
    value = term(features, y, pairs)
    assert terms.parts["metric"].item() == pytest.approx(value.item(), rel=1e-9)
    assert terms.total.item() == pytest.approx((passes.total + 2 * value).item(), rel=1e-9)
    terms.total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in [*model.parameters(), *method.parameters()])
