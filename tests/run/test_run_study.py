"""A whole study: trained, attacked and reported once, and never twice."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.data import DataSet, Split
from holdfast.recipes import schema
from holdfast.recipes.schema import EvaluatePlan, Recipe
from holdfast.records import snapshot
from holdfast.records.records import Records
from holdfast.run import study
from holdfast.run.study import Workshop, commit, finished, report, study_of, versions
from tiny_study import same, table

MODELS = [("plain", 0), ("plain", 1), ("TLA", 0), ("TLA", 1)]
WEIGHTS = ("best.safetensors", "last.safetensors")


@pytest.fixture
def recipe(tiny: Path) -> Recipe:
    return schema.load(str(tiny))


def shop(recipe: Recipe, out: Path, told: list[Any] | None = None) -> Workshop:
    heard: list[Any] = [] if told is None else told
    return Workshop.open(recipe, out, None, "cpu", lambda *words: heard.append(words))


def times(out: Path, *patterns: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for pattern in patterns for path in out.rglob(pattern)}


def test_everything_is_there(finished: Path) -> None:
    out = finished / "out"
    page = (out / "report.html").read_text()
    assert "tiny &lt;study&gt;" in page
    assert "tiny <study>" not in page
    for method, seed in MODELS:
        folder = out / method / f"seed-{seed}"
        assert {p.name for p in folder.iterdir()} == {
            *WEIGHTS,
            "metrics.jsonl",
            "trained.json",
            "job.json",
            "records",
            "parts",
        }
        records = Records.load(folder / "records")
        assert len(records) == 60
        assert set(records.attacks) == {"noise", "PGD-3", "C&W", "transfer", "PGD-3@0.05", "PGD-3@0.3"}
        facts = records.facts
        assert (facts["model"], facts["seed"]) == (method, seed)
        assert facts["method"] == {"plain": "plain", "TLA": "tla"}[method]
        assert facts["weights"]["digest"] == snapshot.digest(snapshot.read(folder / "best.safetensors")[0])
        assert facts["training"]["steps"] == 12
        assert facts["versions"]["torch"] == torch.__version__
        assert schema.read(facts["recipe"]).table() == schema.load(str(finished / "tiny.toml")).table()


def test_running_again_trains_and_attacks_nothing(
    study: SimpleNamespace, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this was done before")

    kept = ("*.safetensors", "trained.json", "job.json", "metrics.jsonl", "parts/*.npz")
    before = times(study.out, *kept)
    assert len(before) == 4 * (2 + 1 + 1 + 1 + 2 * 7)
    columns = {path: path.read_bytes() for path in study.out.rglob("records.csv")}
    monkeypatch.setattr("holdfast.attacks._ascent.Loop.__call__", refuse)
    monkeypatch.setattr("holdfast.attacks.noise.Noise.__call__", refuse)
    monkeypatch.setattr("holdfast.methods.plain.Plain.__call__", refuse)
    done = call("run", study.recipe, "--out", study.out)
    assert done.code == 0, done.err
    assert times(study.out, *kept) == before
    assert {path: path.read_bytes() for path in study.out.rglob("records.csv")} == columns


def test_the_report_needs_no_models(study: SimpleNamespace, call: Any) -> None:
    before = (study.out / "report.html").read_text()
    for path in [*study.out.rglob("*.safetensors"), *study.out.rglob("parts"), study.out / "report.html"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = call("report", study.recipe, "--out", study.out)
    assert (done.code, done.out) == (0, f"report: {study.out / 'report.html'}\n")
    assert (study.out / "report.html").read_text() == before


def test_the_report_shows_what_is_finished(study: SimpleNamespace, recipe: Recipe) -> None:
    shutil.rmtree(study.out / "TLA" / "seed-1" / "records")
    assert [(run.name, run.seed) for run in finished(recipe, study.out)] == MODELS[:3]
    shutil.rmtree(study.out)
    with pytest.raises(FileNotFoundError, match="holds no records to report; run `holdfast run tiny` first"):
        report(recipe, study.out)


def test_half_records_are_no_records(study: SimpleNamespace, recipe: Recipe) -> None:
    path = study.out / "plain" / "seed-0" / "records" / "records.csv"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="half-written or edited; evaluate again"):
        report(recipe, study.out)


def test_transfer_crafts_on_the_other_seed(study: SimpleNamespace, recipe: Recipe) -> None:
    here = shop(recipe, study.out)
    for method, seed in MODELS:
        attack, settings = here.attack("transfer", method, seed)
        source = snapshot.read(study.out / method / f"seed-{1 - seed}" / "best.safetensors")[0]
        assert same(attack.source.state_dict(), source)  # type: ignore[attr-defined]
        assert settings["weights"] == snapshot.digest(source)
        assert not attack.source.training  # type: ignore[attr-defined]


def test_transfer_from_a_named_method(study: SimpleNamespace, recipe: Recipe, tiny: Path) -> None:
    other = schema.load(str(tiny), ["attacks.transfer.source=plain"])
    attack, _ = shop(other, study.out).attack("transfer", "TLA", 0)
    source = snapshot.read(study.out / "plain" / "seed-1" / "best.safetensors")[0]
    assert same(attack.source.state_dict(), source)  # type: ignore[attr-defined]


def test_best_or_last_weights(study: SimpleNamespace, tiny: Path) -> None:
    for kept in ("best", "last"):
        here = shop(schema.load(str(tiny), [f"evaluate.weights={kept}"]), study.out)
        model, digest = here.model("TLA", 1)
        weights = snapshot.read(study.out / "TLA" / "seed-1" / f"{kept}.safetensors")[0]
        assert same(model.state_dict(), weights)
        assert digest == snapshot.digest(weights)


def test_weights_of_other_settings_or_unfinished_ones_are_not_evaluated(study: SimpleNamespace, tiny: Path) -> None:
    other = schema.load(str(tiny), ["train.optimizer.lr=0.06"])
    with pytest.raises(ValueError, match="holds a model of other settings"):
        shop(other, study.out).evaluate("plain", 0)
    (study.out / "plain" / "seed-0" / "trained.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no finished model; train plain with seed 0 first"):
        shop(schema.load(str(tiny)), study.out).evaluate("plain", 0)


def test_weights_that_training_did_not_write_are_not_evaluated(study: SimpleNamespace, recipe: Recipe) -> None:
    shutil.copy(
        study.out / "plain" / "seed-1" / "best.safetensors", study.out / "plain" / "seed-0" / "best.safetensors"
    )
    with pytest.raises(ValueError, match=r"seed-0/best\.safetensors is not what training wrote there; remove"):
        shop(recipe, study.out).evaluate("plain", 0)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ("threat.eps=0.1", True),
        ("attacks.PGD-3.steps=4", True),
        ("methods.plain.smoothing=0.1", True),
        ("title=Another title", False),
        ("seeds=[1, 0]", False),
    ],
)
def test_records_of_other_settings_are_not_reported_under_this_recipe(
    study: SimpleNamespace, tiny: Path, change: str, refused: bool
) -> None:
    other = schema.load(str(tiny), [change])
    if refused:
        with pytest.raises(ValueError, match="holds records of other settings; give the --set changes"):
            report(other, study.out)
    else:
        assert report(other, study.out).is_file()


def test_one_method_and_one_seed(recipe: Recipe, tmp_path: Path) -> None:
    here = shop(recipe, tmp_path)
    assert here.chosen(None, None) == MODELS
    assert here.chosen("TLA", None) == MODELS[2:]
    assert here.chosen(None, 1) == [MODELS[1], MODELS[3]]
    with pytest.raises(ValueError, match="unknown method 'TAL'; did you mean 'TLA'"):
        here.chosen("TAL", None)
    with pytest.raises(ValueError, match=r"seed 7 is not in the recipe \(0, 1\); add it with --set 'seeds="):
        here.chosen(None, 7)


def test_fine_tuning_from_a_method_of_the_study_trains_that_first(
    tiny: Path, tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "load_data", lambda *_: digits)
    still = ["methods.TLA.train.optimizer={name='sgd', lr=0.0}", "methods.TLA.train.init_from=plain", "train.epochs=1"]
    told: list[Any] = []
    here = shop(schema.load(str(tiny), still), tmp_path, told)
    here.train("TLA", 1)
    assert list(dict.fromkeys(words for words, *_ in told)) == ["train plain, seed 1", "train TLA, seed 1"]
    assert sorted(p.name for p in tmp_path.glob("*/seed-*")) == ["seed-1", "seed-1"]
    start, tuned = (snapshot.read(tmp_path / name / "seed-1" / "best.safetensors")[0] for name in ("plain", "TLA"))
    parameters = [name for name in start if name.endswith((".weight", ".bias"))]
    assert all(torch.equal(start[name], tuned[name]) for name in parameters)


def test_open_boxes_and_odd_titles_can_be_recorded(tmp_path: Path, digits: DataSet) -> None:
    given = table(
        title="Infinity, NaN",
        threat={"norm": "linf", "eps": 0.1, "low": float("-inf"), "high": float("inf")},
        model={"encoder": "tiny", "channels": 1, "width": 4},
        train={"epochs": 1, "batch": 1000, "validate_samples": 5},
        attacks={"cw": {"name": "cw_linf", "steps": 1, "kappa": float("inf")}},
        evaluate={"samples": 5},
    )
    recipe = schema.read(given)
    here = shop(recipe, tmp_path)
    here.train("plain", 0)
    records = here.evaluate("plain", 0)
    assert records.facts["attacks"]["cw"]["settings"]["kappa"] == "inf"
    assert records.facts["recipe"]["threat"]["low"] == "-inf"
    assert records.facts["recipe"]["title"] == "Infinity, NaN"
    assert schema.read(records.facts["recipe"]).table() == recipe.table()
    assert report(recipe, tmp_path).is_file()


def test_versions_and_commit() -> None:
    assert {"python", "platform", "holdfast", "torch", "numpy", "threads"} <= set(versions())
    found = commit()
    assert found is None or (len(found) == 40 and int(found, 16))


def test_a_study_says_its_threat_and_its_resolved_recipe(study: SimpleNamespace, recipe: Recipe) -> None:
    page = study_of(recipe, finished(recipe, study.out))
    assert (page.norm, page.eps, page.title) == ("linf", 0.2, "tiny <study>")
    assert "lambda1 = 0.5" in page.recipe  # a default, written out
    assert json.dumps(dict(page.versions))


@pytest.mark.parametrize(("wanted", "found"), [(None, range(10)), (3, [0, 3, 6]), (10, range(10)), (99, range(10))])
def test_samples_are_spread_over_the_test_set(wanted: int | None, found: list[int]) -> None:
    test = Split(torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64), torch.arange(10))
    place = SimpleNamespace(
        data=SimpleNamespace(test=test), recipe=SimpleNamespace(evaluate=EvaluatePlan(samples=wanted))
    )
    assert Workshop.samples(place).index.tolist() == list(found)
