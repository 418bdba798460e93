"""A whole study: training, attacks and report, none of them repeated by a second run."""

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.attacks.transfer import Transfer
from holdfast.data import DataSet, Split
from holdfast.recipes import schema
from holdfast.recipes.schema import Recipe
from holdfast.records import snapshot
from holdfast.records.provenance import commit, versions
from holdfast.records.records import Records
from holdfast.run import session
from holdfast.run.report import write_report
from holdfast.run.session import Session
from holdfast.run.study import Row, evaluate, report_on, rows, study_of
from holdfast.run.subjects.trained import Trained
from tiny_study import TINY, one_sentence, same, table

MODELS = [("plain", 0), ("plain", 1), ("TLA", 0), ("TLA", 1)]
WEIGHTS = ("best.safetensors", "last.safetensors")


@pytest.fixture
def recipe(tiny: Path) -> Recipe:
    return schema.load(str(tiny))


def opened(recipe: Recipe, out: Path, progress: list[Any] | None = None) -> Session:
    reported: list[Any] = [] if progress is None else progress
    return Session.open(recipe, out, None, "cpu", lambda *progress: reported.append(progress))


def models(recipe: Recipe, out: Path) -> Trained:
    return Trained(opened(recipe, out))


def evaluated(recipe: Recipe, out: Path, method: str, seed: int) -> Records:
    evaluate(opened(recipe, out), rows(recipe, name=method, seed=seed))
    return Records.load(out / method / f"seed-{seed}" / "records")


def report(recipe: Recipe, out: Path) -> Path:
    write_report(recipe, out, None, text=None)
    return out / "report.html"


def times(out: Path, *patterns: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for pattern in patterns for path in out.rglob(pattern)}


def test_run_writes_every_result_file(finished: Path) -> None:
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
            "choices.json",
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

    patterns = ("*.safetensors", "trained.json", "job.json", "metrics.jsonl", "parts/*.npz")
    before = times(study.out, *patterns)
    assert len(before) == 4 * (2 + 1 + 1 + 1 + 2 * 7)
    columns = {path: path.read_bytes() for path in study.out.rglob("records.csv")}
    monkeypatch.setattr("holdfast.attacks._ascent.Loop.__call__", refuse)
    monkeypatch.setattr("holdfast.attacks.noise.Noise.__call__", refuse)
    monkeypatch.setattr("holdfast.methods.plain.Plain.__call__", refuse)
    done = call("run", study.recipe, "--out", study.out)
    assert done.code == 0, done.err
    assert times(study.out, *patterns) == before
    assert {path: path.read_bytes() for path in study.out.rglob("records.csv")} == columns


def test_report_needs_no_models(study: SimpleNamespace, call: Any) -> None:
    before = (study.out / "report.html").read_text()
    for path in [*study.out.rglob("*.safetensors"), *study.out.rglob("parts"), study.out / "report.html"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = call("report", study.recipe, "--out", study.out)
    assert (done.code, done.out) == (0, f"report: {study.out / 'report.html'}\n")
    assert (study.out / "report.html").read_text() == before


def test_report_shows_finished_models(study: SimpleNamespace, recipe: Recipe) -> None:
    shutil.rmtree(study.out / "TLA" / "seed-1" / "records")
    assert [(run.name, run.seed) for run in report_on(recipe, study.out)] == MODELS[:3]
    shutil.rmtree(study.out)
    command = f"holdfast run {shlex.quote(recipe.call)} --out {shlex.quote(str(study.out))}"
    with pytest.raises(FileNotFoundError, match=re.escape(f"holds no records to report; run `{command}` first")):
        report(recipe, study.out)


def test_incomplete_records_are_refused(study: SimpleNamespace, recipe: Recipe) -> None:
    path = study.out / "plain" / "seed-0" / "records" / "records.csv"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="half-written or edited; evaluate again"):
        report(recipe, study.out)


def test_transfer_crafts_on_the_model_of_the_other_seed(study: SimpleNamespace, recipe: Recipe) -> None:
    trained = models(recipe, study.out)
    for method, seed in MODELS:
        attack, settings = trained.attack("transfer", method, seed)
        source = snapshot.read(study.out / method / f"seed-{1 - seed}" / "best.safetensors")[0]
        assert same(attack.source.state_dict(), source)  # type: ignore[attr-defined]
        assert settings["weights"] == snapshot.digest(source)
        assert not attack.source.training  # type: ignore[attr-defined]


def test_transfer_from_a_named_method(study: SimpleNamespace, recipe: Recipe, tiny: Path) -> None:
    other = schema.load(str(tiny), ["attacks.transfer.source=plain"])
    attack, _ = models(other, study.out).attack("transfer", "TLA", 0)
    source = snapshot.read(study.out / "plain" / "seed-1" / "best.safetensors")[0]
    assert same(attack.source.state_dict(), source)  # type: ignore[attr-defined]


def test_transfer_from_several_methods(study: SimpleNamespace, recipe: Recipe, tiny: Path) -> None:
    changes = ["attacks.transfer.source=['self', 'plain']", "attacks.transfer.diversity=0.5"]
    trained = models(schema.load(str(tiny), changes), study.out)
    attack, settings = trained.attack("transfer", "TLA", 0)
    assert isinstance(attack, Transfer)
    sources = [snapshot.read(study.out / method / "seed-1" / "best.safetensors")[0] for method in ("TLA", "plain")]
    assert all(same(found.state_dict(), source) for found, source in zip(attack.sources, sources, strict=True))
    assert settings["weights"] == [snapshot.digest(source) for source in sources]
    assert attack.diversity == settings["diversity"] == 0.5
    alone, _ = trained.attack("transfer", "plain", 0)  # "self" is "plain" here
    assert isinstance(alone, Transfer)
    assert len(alone.sources) == 1


def test_best_or_last_weights_are_evaluated(study: SimpleNamespace, tiny: Path) -> None:
    for selected in ("best", "last"):
        trained = models(schema.load(str(tiny), [f"evaluate.weights={selected}"]), study.out)
        model = trained.model("TLA", 1)
        _, settings = trained.attack("transfer", "TLA", 0)  # crafts on seed 1
        weights = snapshot.read(study.out / "TLA" / "seed-1" / f"{selected}.safetensors")[0]
        assert same(model.state_dict(), weights)
        assert settings["weights"] == snapshot.digest(weights)


def test_weights_of_other_settings_or_unfinished_ones_are_not_evaluated(study: SimpleNamespace, tiny: Path) -> None:
    other = schema.load(str(tiny), ["train.optimizer.lr=0.06"])
    with pytest.raises(ValueError, match="holds a model of other settings"):
        evaluated(other, study.out, "plain", 0)
    (study.out / "plain" / "seed-0" / "trained.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no finished model; train plain with seed 0 first"):
        evaluated(schema.load(str(tiny)), study.out, "plain", 0)


def test_weights_that_training_did_not_write_are_not_evaluated(study: SimpleNamespace, recipe: Recipe) -> None:
    shutil.copy(
        study.out / "plain" / "seed-1" / "best.safetensors", study.out / "plain" / "seed-0" / "best.safetensors"
    )
    with pytest.raises(ValueError, match=r"seed-0/best\.safetensors is not what training wrote there; remove"):
        evaluated(recipe, study.out, "plain", 0)


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


def test_printed_commands_work_when_pasted(study: SimpleNamespace, call: Any) -> None:
    """The recipe is a path with a space, records are not in the default folder, and a setting is changed."""
    (folder := study.out.parent / "my recipes").mkdir()
    recipe, numbers = study.recipe.rename(folder / "tiny.toml"), folder / "numbers.md"
    message = one_sentence(call("report", recipe, "--out", study.out, "--set", "attacks.PGD-3.steps=1"), 2)
    (command,) = re.findall("`(holdfast run .*)`", message)
    assert call(*shlex.split(command)[1:], "--markdown", numbers).code == 0
    made_by, written_by = re.findall("`(holdfast .*?)`", numbers.read_text())
    for line in (made_by, written_by.replace("FILE", shlex.quote(str(numbers)))):
        assert call(*shlex.split(line)[1:], "--out", study.out).code == 0


def test_rows_are_selected_by_method_and_seed(recipe: Recipe) -> None:
    every = [Row("methods", *model) for model in MODELS]
    assert rows(recipe) == every
    assert rows(recipe, name="TLA") == every[2:]
    assert rows(recipe, seed=1) == [every[1], every[3]]
    with pytest.raises(ValueError, match="unknown method 'TAL'; did you mean 'TLA'"):
        rows(recipe, name="TAL")
    with pytest.raises(ValueError, match=r"seed 7 is not in the recipe \(0, 1\); add it with --set 'seeds="):
        rows(recipe, seed=7)


def test_fine_tuning_from_a_method_of_the_study_trains_that_first(
    tiny: Path, tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "load_for", lambda *_: digits)
    still = ["methods.TLA.train.optimizer={name='sgd', lr=0.0}", "methods.TLA.train.init_from=plain", "train.epochs=1"]
    progress: list[Any] = []
    Trained(opened(schema.load(str(tiny), still), tmp_path, progress)).prepare("TLA", 1)
    assert list(dict.fromkeys(what for what, *_ in progress)) == ["train plain, seed 1", "train TLA, seed 1"]
    assert sorted(p.name for p in tmp_path.glob("*/seed-*")) == ["seed-1", "seed-1"]
    start, tuned = (snapshot.read(tmp_path / name / "seed-1" / "best.safetensors")[0] for name in ("plain", "TLA"))
    parameters = [name for name in start if name.endswith((".weight", ".bias"))]
    assert all(torch.equal(start[name], tuned[name]) for name in parameters)


def test_unbounded_boxes_and_unusual_titles_are_recorded(tmp_path: Path, digits: DataSet) -> None:
    given = table(
        title="Infinity, NaN",
        threat={"norm": "linf", "eps": 0.1, "low": float("-inf"), "high": float("inf")},
        model={"encoder": "tiny", "channels": 1, "width": 4},
        train={"epochs": 1, "batch": 1000, "validate_samples": 5},
        attacks={"cw": {"name": "cw_linf", "steps": 1, "kappa": float("inf")}},
        evaluate={"samples": 5},
    )
    recipe = schema.read(given)
    models(recipe, tmp_path).prepare("plain", 0)
    records = evaluated(recipe, tmp_path, "plain", 0)
    assert records.facts["attacks"]["cw"]["settings"]["kappa"] == "inf"
    assert records.facts["recipe"]["threat"]["low"] == "-inf"
    assert records.facts["recipe"]["title"] == "Infinity, NaN"
    assert schema.read(records.facts["recipe"]).table() == recipe.table()
    assert report(recipe, tmp_path).is_file()


def test_records_hold_versions_and_commit() -> None:
    assert {"python", "platform", "holdfast", "torch", "numpy", "threads"} <= set(versions())
    found = commit()
    assert found is None or (len(found) == 40 and int(found, 16))


def test_study_holds_its_threat_and_resolved_recipe(study: SimpleNamespace, recipe: Recipe) -> None:
    page = study_of(recipe, study.out)
    assert (page.norm, page.eps, page.title) == ("linf", 0.2, "tiny <study>")
    assert "lambda1 = 0.5" in page.recipe  # a default
    assert page.code == page.runs[0].records.facts["made"][-1]["code"]


@pytest.mark.parametrize(("wanted", "found"), [(None, range(10)), (3, [0, 3, 6]), (10, range(10)), (99, range(10))])
def test_samples_are_spread_over_the_test_set(wanted: int | None, found: list[int]) -> None:
    test = Split(torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64), torch.arange(10))
    assert Session.samples(SimpleNamespace(data=SimpleNamespace(test=test)), wanted).index.tolist() == list(found)


def test_one_study_combines_methods_metrics_and_own_models(
    tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixed_nets.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "mixed.toml").write_text(
        TINY.replace("[attacks.transfer]\nattack = { steps = 2 }\n", "").replace("[methods.plain]", MIXED)
    )
    done = call("run", "mixed.toml", "--out", "out")
    assert done.code == 0, done.err
    for name in ("| TLA ", "| linear ", "| Euclidean "):
        assert name in done.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "linear" in page
    assert "Euclidean" in page
    certified = Records.load(tmp_path / "out" / "Euclidean" / "k-1" / "seed-0" / "records")
    assert {"radius:l2:neighbors", "upper:l2:neighbors"} <= set(certified.columns)
    assert not certified.attacks
    assert len(Records.load(tmp_path / "out" / "linear" / "seed-0" / "records")) == 60


def test_a_study_of_own_models_fits_metrics_first(tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "own.toml").write_text(
        'data = { name = "digits" }\nevaluate = { samples = 5 }\ncertify = { samples = 5, radii = [0.1] }\n'
        'attacks = { FGSM = { name = "fgsm" } }\nthreat = { norm = "linf", eps = 0.1 }\n'
        'models = { linear = { module = "own_nets:build" } }\nmetrics = { Euclidean = { learner = "euclidean" } }\n'
    )
    done = call("run", "own.toml")
    assert done.code == 0, done.err
    assert "| linear " in done.out


MIXED = """
[models.linear]
module = "mixed_nets:build"
[metrics.Euclidean]
learner = "euclidean"
[certify]
samples = 5
radii = [0.1]
[methods.plain]"""


def test_duplicate_names_of_classifiers_are_refused() -> None:
    given = table(models={"Plain": {"module": "nets:build"}})
    with pytest.raises(ValueError, match="two tables of methods, models and metrics have the name 'plain'; rename one"):
        schema.read(given)


def test_a_model_that_crafted_otherwise_than_the_recipe_asks_is_refused(study: SimpleNamespace, call: Any) -> None:
    done = call("run", study.recipe, "--out", study.out, "--set", "arithmetic=bfloat16")
    assert done.code == 2
    assert "trained with arithmetic = 'float32' but 'bfloat16' is asked for; choose another --out" in done.err
    done = call("report", study.recipe, "--out", study.out, "--set", "crafting=module")
    assert done.code == 2
    assert "holds records of other settings" in done.err


def test_the_module_itself_computes_in_its_own_precision() -> None:
    with pytest.raises(ValueError, match='crafting = "module" calls the model itself, in float32'):
        schema.read(table(crafting="module", arithmetic="bfloat16"))


def test_a_table_set_to_false_is_left_out() -> None:
    given = table(metrics={"E": {"learner": "euclidean"}}, certify={"radii": [0.1]})
    assert schema.read(given).metrics
    assert not schema.read(given | {"metrics": False, "certify": False}).metrics
