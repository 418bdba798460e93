"""`holdfast certify`: records, resuming, the page, and errors."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from holdfast.certify.neighbors import Neighbors
from holdfast.data import load as load_data
from holdfast.recipes import schema, source
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables import certify as tables
from holdfast.records.records import Records
from holdfast.report.study import Study
from holdfast.rng import Rng
from holdfast.run import session, study
from holdfast.run.cli import main
from holdfast.run.report import write_report
from holdfast.run.session import Session
from tiny_study import one_sentence

CHANGES = ['metrics={Euclidean="plain", Scaled={learner="scaled"}}', "certify.samples=5", "certify.shard=2"]
CHANGES += ["certify.k=[1,3]", "seeds=[0,1]", "certify.radii=[0.2,0.6]", "threads=1"]


class Plain(BaseEstimator):
    """A learner that returns the Euclidean metric."""

    def fit(self, x: Any, y: Any) -> "Plain":
        self.components_ = np.eye(x.shape[1])
        return self


class Scaled(BaseEstimator):
    """A learner that scales every feature by a random factor."""

    fits = 0

    def __init__(self, *, by: float = 1.0, random_state: int | None = None, device: str | None = None) -> None:
        self.by, self.random_state, self.device = by, random_state, device

    def fit(self, x: Any, y: Any) -> "Scaled":
        assert self.device == "cpu"
        Scaled.fits += 1
        draw = np.random.default_rng(self.random_state)
        self.components_ = np.diag(self.by * draw.uniform(0.5, 1.5, x.shape[1]))
        return self


@pytest.fixture(autouse=True)
def _learners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "learners", lambda: {"plain": Plain, "scaled": Scaled})
    Scaled.fits = 0


def recipe(*changes: str) -> Recipe:
    return schema.load("arml-digits", [*CHANGES, *changes])


def certify(
    recipe: Recipe, out: Path, metric: str | None = None, seed: int | None = None, device: str = "cpu"
) -> Study:
    """Fit, certify and report, as the command does."""
    chosen = study.rows(recipe, ("metrics",), metric, seed)
    study.report_on(recipe, out, besides=chosen)
    opened = Session.open(recipe, out, None, device, lambda *_: None)
    for row in chosen:
        study.prepare(opened, [row])
        study.evaluate(opened, [row])
    write_report(recipe, out, None, text=None)
    return study.study_of(recipe, out)


@pytest.fixture
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_data("digits", valid=1)
    order = torch.cat([data.train.index, data.valid.index]).argsort()
    x = torch.cat([data.train.x, data.valid.x])[order].double()
    return x, torch.cat([data.train.y, data.valid.y])[order], data.test.spread(5).x.double()


def test_records_hold_the_certificates(tmp_path: Path, digits: Any) -> None:
    made = certify(recipe(), tmp_path)
    x, y, inputs = digits
    for k in (1, 3):
        found = Neighbors(points=x, labels=y, k=k)(inputs, rng=Rng(0))
        for seed in (0, 1):
            records = Records.load(tmp_path / "Euclidean" / f"k-{k}" / f"seed-{seed}" / "records")
            np.testing.assert_array_equal(records.columns["label"], found.label)
            np.testing.assert_allclose(records.columns["radius:l2:neighbors"], found.radius, rtol=1e-9)
            np.testing.assert_allclose(records.columns["upper:l2:neighbors"], found.upper, rtol=1e-9)
            assert records.certificates["neighbors"]["settings"]["k"] == k
    assert [group for group, _ in made.certified()] == ["K = 1", "K = 3"]
    assert (tmp_path / "report.html").is_file()


def test_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = Neighbors.__call__

    def counted(self: Neighbors, x: torch.Tensor, *, rng: Rng) -> Any:
        calls.append(len(x))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, x, rng=rng)

    monkeypatch.setattr(Neighbors, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        certify(recipe(), tmp_path)
    certify(recipe(), tmp_path)
    assert Scaled.fits == 2  # one for each seed
    assert len(calls) == 1 + 3 * 2 * 3  # 3 parts, K = 1 and 3, one plain metric for both seeds and two scaled ones
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*/*/records/records.csv")}
    certified = [path for path in sorted(tmp_path.glob("parts/*")) if "radius" in np.load(path).files]
    for part in certified[:2]:
        part.write_bytes(b"damaged")
    certify(recipe(), tmp_path)
    assert len(calls) == 1 + 3 * 2 * 3 + 2
    assert before == {path: path.read_bytes() for path in tmp_path.glob("*/*/*/records/records.csv")}


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    certify(recipe(), tmp_path, "Scaled", 0)
    study.study_of(recipe("certify.radii=[0.4]"), tmp_path)  # changes only the columns of the table
    with pytest.raises(ValueError, match="other settings"):
        study.study_of(recipe("metrics.Scaled.by=2.0"), tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        study.study_of(recipe("certify.samples=4"), tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no records"):
        study.study_of(recipe(), tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("certify.radii=[-0.1]", "finite radii of zero or more"),
        ("certify.radii=[]", "finite radii of zero or more"),
        ("certify.k=[2]", "odd"),
        ("certify.k=[1,1]", "different odd"),
        ("certify.shard=0", "shard is 0 but a part holds at least 1"),
        ("certify.samples=0", "certify: samples is 0 but at least 1 is needed"),
        ("certify.radius=[1]", "radii"),
        ('metrics={A="scalde"}', "did you mean 'scaled'"),
        ("metrics.Scaled.random_state=1", "unknown key 'random_state'"),
        ("metrics.Scaled.bye=1", "did you mean 'by'"),
        ("metrics.Scaled.by='many'", "metrics.Scaled.by is 'many': input should be a valid number"),
        ("metrics.Scaled.by=true", "metrics.Scaled.by is true: this key does not take true or false"),
        ("modle.encoder='mlp'", "unknown key 'modle'"),
    ],
)
def test_bad_recipes_are_refused_in_one_sentence(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        recipe("metrics={Scaled={learner='scaled'}}", change)
    assert "\n" not in str(caught.value)


def test_recipe_without_metrics_is_refused(call: Any) -> None:
    assert "use `holdfast run`" in one_sentence(call("certify", "quickstart"), 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("certify.k=[1,9999]", "points but k = 9999 needs 10000"),
        ("certify.near=1", "near is 1 but the bound of k = 3 needs"),
        ("certify.box=[0,0.5]", "points spans .* but the box is"),
        ("certify.box=[1,0]", "is empty"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused_before_fitting(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        certify(recipe("metrics.Euclidean=false", change), tmp_path)
    assert Scaled.fits == 0


def test_samples_outside_the_box_are_refused_before_fitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("digits", valid=1)
    data.test.x[-1] += 1  # as may happen with tabular data
    monkeypatch.setattr(session, "load_for", lambda *_: data)
    with pytest.raises(ValueError, match=r"x spans .* but the box is"):
        certify(recipe("metrics.Euclidean=false", "certify.box=[0,1]", "certify.samples=9999"), tmp_path)
    assert Scaled.fits == 0


def test_folder_of_other_settings_is_refused_before_fitting(tmp_path: Path) -> None:
    certify(recipe(), tmp_path, "Scaled", 0)
    other = recipe("certify.samples=4")
    for metric, seed in (("Scaled", 1), ("Euclidean", None)):
        with pytest.raises(ValueError, match="holds records of other settings"):
            certify(other, tmp_path, metric, seed)
    assert Scaled.fits == 1
    made = certify(other, tmp_path, "Scaled", 0)  # all remaining records have the new settings
    assert [len(run.records) for run in made.runs] == [4, 4]


def test_device_without_float64_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_fabric", lambda name: SimpleNamespace(device=torch.device(name)))
    with pytest.raises(ValueError, match="device 'mps' has no float64, which certificates need"):
        certify(recipe(), tmp_path, device="mps")


@pytest.mark.parametrize("device", ["tpu", "abacus"])
def test_unusable_device_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ValueError, match=f"device {device!r} .*; choose auto"):
        certify(recipe(), tmp_path, device=device)


def test_recipe_equals_its_resolved_form() -> None:
    table = recipe("metrics.Scaled={learner='scaled', by=2.0}").table()
    assert schema.read(json.loads(json.dumps(table))).table() == table


def test_command_prints_tables_and_writes_page_and_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [item for change in CHANGES for item in ("--set", change)]
    arguments = ["holdfast", "certify", "arml-digits", *changes, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*arguments, "--markdown", str(tmp_path / "numbers.md"), "--metric", "Euclidean"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "K = 1" in out
    assert "Certified 0.2" in out
    assert str(tmp_path / "out" / "report.html") in out
    assert "holdfast run arml-digits --set" in (tmp_path / "numbers.md").read_text()


def test_report_rewrites_page_and_markdown_from_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [item for change in CHANGES for item in ("--set", change)]
    arguments = ["holdfast", "report", "arml-digits", *changes, "--out", str(tmp_path), "--markdown"]
    monkeypatch.setattr("sys.argv", [*arguments, str(tmp_path / "again.md")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "holds no records to report; run `holdfast run arml-digits --set" in capsys.readouterr().err
    certify(recipe(), tmp_path)
    page, fits = (tmp_path / "report.html").read_bytes(), Scaled.fits
    (tmp_path / "report.html").unlink()
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert Scaled.fits == fits
    assert (tmp_path / "report.html").read_bytes() == page
    assert "Certified 0.2" in (tmp_path / "again.md").read_text()


def test_recipes_that_certify_are_listed_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    for arguments in (["list", "recipes"], ["list", "learners"], ["show", "arml-usps"]):
        monkeypatch.setattr("sys.argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit):
            main()
    out = capsys.readouterr().out
    assert "arml-pendigits" in out
    assert 'name = "usps"' in out


@pytest.mark.parametrize("name", ["arml-mnist", "arml-fashion-mnist"])
def test_recipes_of_large_sets_learn_metrics_on_a_stated_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = schema.load(name)
    assert set(found.metrics) == {"Euclidean", "ARML"}
    assert found.certify is not None
    assert (found.certify.k, found.certify.samples, found.certify.fit) == ((1,), 1000, 5000)
    with pytest.raises(ValueError, match="fit is 1 but a metric is fitted on at least 2 samples"):
        schema.load(name, ["certify.fit=1"])


@pytest.mark.parametrize("name", [n for n in source.names() if n.startswith("arml-") and not n.endswith("mnist")])
def test_every_library_recipe_loads_with_the_real_learners(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = schema.load(name)
    assert set(found.metrics) == {"Euclidean", "NCA", "LMNN", "ITML", "ARML"}
    assert found.certify is not None
    assert found.certify.k == (1, 11)
    assert len(found.seeds) >= 3


def test_certified_classifier_equals_the_learners_classifier() -> None:
    from holdfast.learners import MahalanobisKNN

    rng = np.random.default_rng(0)
    x, y, inputs = np.round(rng.normal(size=(60, 4)), 1), rng.integers(0, 4, 60), np.round(rng.normal(size=(80, 4)), 1)
    root = rng.normal(size=(2, 4))
    for k in (1, 5):
        theirs = MahalanobisKNN(root.T @ root, n_neighbors=k).fit(x, y).predict(inputs)
        subject = Neighbors(
            points=torch.from_numpy(x), labels=torch.from_numpy(y), matrix=torch.from_numpy(root.T @ root), k=k
        )
        assert (subject.predict(torch.from_numpy(inputs)).numpy() == theirs).all()


ATTACKED = ['threat={norm="l2", eps=2.0}', "attacks={hopskipjump={queries=60}}"]


def test_black_box_attacks_run_on_nearest_neighbors(tmp_path: Path) -> None:
    certify(recipe(*ATTACKED), tmp_path)
    records = Records.load(tmp_path / "Euclidean" / "k-3" / "seed-0" / "records")
    fooled, distance = (records.columns[f"{kind}:l2:hopskipjump"] for kind in ("fooled", "distance"))
    right = records.correct & fooled
    assert right.any()
    assert (distance[right] >= records.columns["radius:l2:neighbors"][right]).all()
    assert records.facts["attacks"]["hopskipjump"]["backwards"] == 0


def test_attacks_with_gradients_leave_nearest_neighbors_out(tmp_path: Path) -> None:
    certify(recipe(ATTACKED[0], "attacks={hopskipjump={queries=60}, pgd={steps=2}}"), tmp_path)
    records = Records.load(tmp_path / "Euclidean" / "k-3" / "seed-0" / "records")
    assert not records.attacks


def test_records_of_other_attacks_are_not_shown(tmp_path: Path) -> None:
    certify(recipe(*ATTACKED), tmp_path)
    with pytest.raises(ValueError, match="holds records of other settings"):
        study.study_of(recipe(ATTACKED[0], "attacks={hopskipjump={queries=61}}"), tmp_path)
    assert study.study_of(recipe(*ATTACKED), tmp_path).runs


def test_metrics_are_fitted_on_as_many_samples_as_the_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, fit = [], Scaled.fit

    def counted(self: Scaled, x: Any, y: Any) -> Scaled:
        sizes.append(len(x))
        return fit(self, x, y)

    monkeypatch.setattr(Scaled, "fit", counted)
    certify(recipe("certify.fit=40"), tmp_path)
    assert sizes == [40, 40]
