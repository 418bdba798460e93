"""Method x head x metric term x activation: every combination loads, trains and updates every parameter."""

import json
import re
import tomllib
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import data
from holdfast.attacks.feature_norm import FeatureNorm
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Cost
from holdfast.data import DataSet
from holdfast.evaluation.judge import judge
from holdfast.methods.llr import LLR
from holdfast.methods.triplet import Triplet
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.recipes import toml
from holdfast.recipes.assemble import build_model
from holdfast.recipes.schema import Recipe, read
from holdfast.records import snapshot
from holdfast.rng import Rng
from holdfast.training.batches import Batches
from holdfast.training.job import Job
from holdfast.training.optimizer import build_optimizer
from tiny_study import bits, run_job, table, toy, toy_job

HE = {"head": {"name": "hypersphere", "scale": 10.0, "margin": 0.2}}
SOFT = {"activation": "softplus"}
SINGLE: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "AT": {"name": "adversarial"},
    "ALP": {"name": "alp"},
    "TRADES": {"name": "trades"},
    "LLR": {"name": "llr"},
    "CURE": {"name": "cure", "h": [0.2]},
    "TLA": {"name": "tla", "pool": 20},
}
METHODS = {
    **{name: SINGLE[name] for name in ("TRADES", "LLR", "CURE")},
    **{f"{name}+HE": {**table, "model": HE} for name, table in SINGLE.items()},
    "LLR Adam": {"name": "llr", "model": SOFT, "attack": {"steps": 2, "rule": "adam", "step": 0.1}},
    "AT+HE projected": {"name": "adversarial", "model": {"head": {**HE["head"], "weight_norm": "projected"}}},
    "TRADES+triplet+HE": {"name": "triplet", "pool": 20, "method": "trades", "model": HE},
    "LLR+triplet": {"name": "triplet", "pool": 20, "method": {"name": "llr"}, "model": SOFT},
}
LIBRARY = {
    "TRADES+HE+contrastive": {"name": "metric", "method": "trades", "model": HE},
    "AT+N-pair": {"name": "metric", "loss": "NPairsLoss", "method": "adversarial"},
    "ALP+multi-similarity": {
        "name": "metric",
        "loss": "MultiSimilarityLoss",
        "miner": "MultiSimilarityMiner",
        "method": "alp",
    },
    "LLR+proxy-anchor": {
        "name": "metric",
        "loss": "ProxyAnchorLoss",
        "settings": {"num_classes": 10, "embedding_size": 16},
        "method": "llr",
        "model": SOFT,
    },
}
if find_spec("pytorch_metric_learning"):
    METHODS |= LIBRARY


def recipe(methods: dict[str, Any], **more: Any) -> Recipe:
    model = {"encoder": "mlp", "depth": 1, "width": 16}
    sections = {"model": model, "methods": methods, "craft": {"steps": 1}, "train": {"epochs": 1, "batch": 32}}
    return read(table(**sections | {"threat": {"norm": "linf", "eps": 0.1}} | more))


@cache
def digits() -> DataSet:
    return data.load("digits", valid=0.1, seed=0)


@pytest.mark.parametrize("name", METHODS)
def test_a_hundred_steps_lower_the_loss_and_reach_every_parameter(name: str) -> None:
    study = recipe({name: METHODS[name]})
    method, some = study.methods[name].method, digits()
    model = build_model(study.model_of(name), some.shape, len(some.classes), 0)
    config = study.methods[name].train.optimizer
    optimizer = build_optimizer(config, model, method)
    batches = Batches(some.train, 32, method.needs, 0, torch.device("cpu"))
    own = list(method.parameters()) if isinstance(method, nn.Module) else []
    parameters = [*model.parameters(), *own]
    reached, losses, cost = [0.0] * len(parameters), [], Cost()
    order = [*batches.order.epoch(0), *batches.order.epoch(1), *batches.order.epoch(2)][:100]
    for step, which in enumerate(order):
        terms = method(model, batches.batch(step, which), progress=step / 100, rng=Rng(0).fork(step))
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        losses.append(terms.total.item())
        cost = cost + terms.cost
        reached = [r + p.grad.abs().sum().item() for r, p in zip(reached, parameters, strict=True)]
    assert sum(losses[-20:]) < sum(losses[:20])
    assert min(reached) > 0
    assert cost.forwards >= 3200
    assert cost.backwards >= 3200


@pytest.mark.parametrize("name", METHODS)
def test_every_combination_equals_its_resolved_form(name: str) -> None:
    study = recipe({name: METHODS[name]})
    again = read(tomllib.loads(toml.dumps(study.table())))
    assert again.table() == study.table()
    assert again.model_of(name) == study.model_of(name)


def test_methods_can_override_the_model() -> None:
    study = recipe({"AT": SINGLE["AT"], "HE": {"name": "adversarial", "model": HE | SOFT}})
    assert study.methods["AT"].model is None
    plain, own = study.model_of("AT"), study.model_of("HE")
    assert (own.encoder, own.depth, own.width, own.activation) == ("mlp", 1, 16, "softplus")
    assert plain == study.model
    built = [build_model(config, (1, 8, 8), 10, 0) for config in (plain, own)]
    assert type(built[0].head).__name__ == "Linear"
    assert isinstance(built[1].head, Hypersphere)
    assert (built[1].head.scale, built[1].head.margin) == (10.0, 0.2)
    assert any(isinstance(module, nn.Softplus) for module in built[1].modules())


def test_head_is_given_by_name_or_options() -> None:
    short = recipe({"plain": {}}, model={"encoder": "tiny", "head": "hypersphere"}).model.head
    assert (short.name, short.scale) == ("hypersphere", None)
    parts = {"name": "hypersphere", "feature_norm": False, "weight_norm": "none", "margin": 0, "scale": "15/2"}
    head = recipe({"plain": {}}, model={"encoder": "tiny", "head": parts}).model.head.make(4, 3)
    assert isinstance(head, Hypersphere)
    assert (head.feature_norm, head.weight_norm, head.margin, head.scale) == (False, "none", 0.0, 7.5)


def test_reading_a_recipe_does_not_use_the_global_generator() -> None:
    before = torch.get_rng_state()
    recipe({"AT": SINGLE["AT"], "HE": {"name": "adversarial", "model": HE}})
    assert torch.equal(torch.get_rng_state(), before)


def test_inner_methods_use_the_attack_of_the_recipe_or_their_own() -> None:
    own = {"name": "llr", "attack": {"steps": 5, "rule": "adam", "step": 0.1}}
    study = recipe({"a": {"name": "triplet", "method": "llr"}, "b": {"name": "triplet", "method": own}})
    inside = []
    for name in ("a", "b"):
        method = study.methods[name].method
        assert isinstance(method, Triplet)
        assert isinstance(method.method, LLR)
        inside.append(method.method.attack)
    assert inside[0] == PGD(threat=study.threat, steps=1, keep="last")
    assert inside[1] == PGD(threat=study.threat, steps=5, step=0.1, rule="adam", keep="last")


def test_feature_norm_can_be_used_in_recipes() -> None:
    attacks = {"PGD-2 FN": {"name": "feature_norm", "scale": 5, "attack": {"steps": 2}}, "feature_norm": {}}
    study = recipe({"plain": {}}, attacks=attacks)
    attack = study.attacks["PGD-2 FN"]
    assert attack == FeatureNorm(attack=PGD(threat=study.threat, steps=2, keep="last"), scale=5.0)
    again = read(tomllib.loads(toml.dumps(study.table())))
    assert again.table() == study.table()
    some = digits()
    model = build_model(study.model, some.shape, len(some.classes), 0).eval()
    batch = some.test.batch(torch.arange(20))
    x_adv = attack(model, batch.x, batch.y, rng=Rng(0))  # type: ignore[operator]
    assert judge(model, batch.x, x_adv, batch.y, study.threat, Rng(1)).inside.all()


def test_inner_attack_is_completed_in_every_table() -> None:
    written = {"name": "feature_norm", "attack": {"steps": 2}}
    methods = {
        "AT": {"name": "adversarial"},
        "own": {"name": "adversarial", "attack": {"name": "feature_norm"}},
        "inside": {"name": "triplet", "method": {"name": "alp", "attack": written}},
    }
    study = recipe(methods, craft=written, validate=written)
    expected = FeatureNorm(attack=PGD(threat=study.threat, steps=2, keep="last"))
    at, own, inside = (entry.method for entry in study.methods.values())
    assert at.attack == inside.method.attack == study.validate == expected  # type: ignore[attr-defined]
    assert own.attack == FeatureNorm(attack=PGD(threat=study.threat, keep="last"))  # type: ignore[attr-defined]
    assert recipe(methods, validate="feature_norm").validate == own.attack  # type: ignore[attr-defined]
    assert read(tomllib.loads(toml.dumps(study.table()))).table() == study.table()


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"x": {"name": "trades", "beta": -1}}, "methods.x: beta is -1.0 but the weight of a term is"),
        ({"x": {"name": "plain", "model": {"head": {"name": "hypersphere", "margin": 1}}}}, "margin is 1.0 but"),
        ({"x": {"name": "plain", "model": {"head": {"name": "hypersphere", "scale": 0}}}}, "scale is 0.0 but"),
        ({"x": {"name": "plain", "model": {"head": "sphere"}}}, "did you mean 'hypersphere'?"),
        ({"x": {"name": "plain", "model": {"head": {"scale": 3}}}}, "head 'linear' has no scale; leave it out"),
        ({"x": {"name": "plain", "model": {"head": 3}}}, "methods.x.model.head must be a table of settings but is 3"),
        ({"x": {"name": "plain", "model": 3}}, "methods.x.model must be a table of settings but is 3"),
        ({"x": {"name": "plain", "model": {"encoder": "tinny"}}}, "methods.x.model.encoder: unknown encoder 'tinny'"),
        ({"x": {"name": "plain", "model": {"widht": 3}}}, "unknown key 'widht' in methods.x.model"),
        ({"x": {"name": "triplet"}}, "methods.x needs method"),
        ({"x": {"name": "triplet", "method": "tradse"}}, "methods.x.method: unknown method 'tradse'"),
        ({"x": {"name": "triplet", "method": 3}}, "methods.x.method must be a table of settings but is 3"),
        ({"x": {"name": "triplet", "method": {"name": "trades", "bata": 1}}}, "'bata' in methods.x.method; did you"),
        ({"x": {"name": "llr", "attack": "bim"}}, "BIM has no choice of loss and start"),
        ({"x": {"name": "cure", "h": []}}, "methods.x: h is () but it holds one or more lengths"),
    ],
)
def test_invalid_methods_are_refused_in_one_sentence(methods: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as refusal:
        recipe(methods)
    assert "\n" not in str(refusal.value)


def test_parameters_of_a_method_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metric_learning_stub import install

    install(monkeypatch)
    settings = {"num_classes": 3, "embedding_size": 4}
    inside = {"name": "metric", "loss": "Proxies", "settings": settings, "method": "plain"}
    method = recipe({"x": inside}).methods["x"].method
    some = toy()

    def job(folder: str) -> Job:
        return toy_job(tmp_path / folder, method)

    whole = run_job(job("whole"), some)
    tensors, facts = snapshot.read(whole.folder / "method.safetensors")
    assert facts == {"epoch": 3}
    assert list(tensors) == ["term.proxies"]
    assert not torch.equal(tensors["term.proxies"], method.term.proxies)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        run_job(job("stopped"), some, stop_at=5)
    again, _ = snapshot.read(run_job(job("stopped"), some).folder / "method.safetensors")
    assert torch.equal(again["term.proxies"], tensors["term.proxies"])
    named = json.loads((whole.folder / "job.json").read_text())["method"]
    assert named == {
        "name": "metric",
        "method": {"name": "plain", "smoothing": 0.0},
        "loss": "Proxies",
        "settings": settings,
        "miner": None,
        "miner_settings": None,
        "weight": 0.5,
    }


@pytest.mark.parametrize("name", ["TRADES+HE", "LLR Adam", "CURE+HE", "TRADES+triplet+HE"])
def test_every_composition_trains_and_resumes(name: str, tmp_path: Path) -> None:
    """Interrupted and uninterrupted training give bit-identical files."""
    study, some = recipe({name: METHODS[name]}), toy()

    def job(folder: str) -> Job:
        made = toy_job(tmp_path / folder, study.methods[name].method, epochs=2)
        return replace(made, model=replace(study.model_of(name), width=4))

    with pytest.raises(KeyboardInterrupt):
        run_job(job("stopped"), some, stop_at=3)
    whole, stopped = run_job(job("whole"), some), run_job(job("stopped"), some)
    assert bits(whole.folder) == bits(stopped.folder)
    first = json.loads((whole.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert len(first) > 4
