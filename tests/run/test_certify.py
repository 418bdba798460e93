"""The command that certifies: records, resuming, the page, and what it refuses."""

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
from holdfast.recipes import certificate, schema, source
from holdfast.records.records import Records
from holdfast.rng import Rng
from holdfast.run import certify
from holdfast.run.cli import main

CHANGES = ['metrics={Euclidean="plain", Scaled={learner="scaled"}}', "certify.samples=5", "certify.shard=2"]
CHANGES += ["certify.k=[1,3]", "seeds=[0,1]", "certify.radii=[0.2,0.6]", "threads=1"]


class Plain(BaseEstimator):
    """No metric is learned."""

    def fit(self, x: Any, y: Any) -> "Plain":
        self.components_ = np.eye(x.shape[1])
        return self


class Scaled(BaseEstimator):
    """Every feature by a random factor."""

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
    monkeypatch.setattr(certificate, "learners", lambda: {"plain": Plain, "scaled": Scaled})
    Scaled.fits = 0


def told(*_: object) -> None:
    pass


def recipe(*changes: str) -> certificate.CertificateRecipe:
    return certificate.load("arml-digits", [*CHANGES, *changes])


@pytest.fixture
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_data("digits", valid=1)
    order = torch.cat([data.train.index, data.valid.index]).argsort()
    x = torch.cat([data.train.x, data.valid.x])[order].double()
    return x, torch.cat([data.train.y, data.valid.y])[order], data.test.spread(5).x.double()


def test_records_hold_what_the_certifier_says(tmp_path: Path, digits: Any) -> None:
    study = certify.run(recipe(), tmp_path, None, told, device="cpu")
    x, y, inputs = digits
    for k in (1, 3):
        found = Neighbors(points=x, labels=y, k=k)(inputs, rng=Rng(0))
        for seed in (0, 1):
            records = Records.load(certify.records_folder(tmp_path, "Euclidean", k, seed))
            np.testing.assert_array_equal(records.columns["label"], found.label)
            np.testing.assert_allclose(records.columns["radius:l2:neighbors"], found.radius, rtol=1e-9)
            np.testing.assert_allclose(records.columns["upper:l2:neighbors"], found.upper, rtol=1e-9)
            assert records.facts["certifier"]["k"] == k
    assert list(study.certified()) == [("K = 1", "l2:neighbors"), ("K = 3", "l2:neighbors")]
    assert (tmp_path / "report.html").is_file()


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = Neighbors.__call__

    def counted(self: Neighbors, x: torch.Tensor, *, rng: Rng) -> Any:
        calls.append(len(x))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, x, rng=rng)

    monkeypatch.setattr(Neighbors, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        certify.run(recipe(), tmp_path, None, told, device="cpu")
    certify.run(recipe(), tmp_path, None, told, device="cpu")
    assert Scaled.fits == 2  # one for each seed, none twice
    assert len(calls) == 1 + 3 * 2 * 3  # 3 parts, K = 1 and 3, one plain metric for both seeds and two scaled ones
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*/*/records/records.csv")}
    for part in sorted((tmp_path / "parts").iterdir())[:2]:
        part.write_bytes(b"damaged")
    certify.run(recipe(), tmp_path, None, told, device="cpu")
    assert len(calls) == 1 + 3 * 2 * 3 + 2
    assert before == {path: path.read_bytes() for path in tmp_path.glob("*/*/*/records/records.csv")}


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    certify.run(recipe(), tmp_path, None, told, "Scaled", 0, "cpu")
    certify.study_of(recipe("certify.radii=[0.4]"), tmp_path)  # only where the table is read off
    with pytest.raises(ValueError, match="other settings"):
        certify.study_of(recipe("metrics.Scaled.by=2.0"), tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        certify.study_of(recipe("certify.samples=4"), tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no certificates"):
        certify.study_of(recipe(), tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("change", "said"),
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
        ("model.encoder='mlp'", "unknown key 'model'"),
    ],
)
def test_bad_recipes_are_refused_in_one_sentence(change: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        recipe("metrics={Scaled={learner='scaled'}}", change)
    assert "\n" not in str(caught.value)


def test_recipes_of_the_two_kinds_name_each_others_command() -> None:
    with pytest.raises(ValueError, match="use `holdfast certify arml-usps`"):
        schema.load("arml-usps")
    with pytest.raises(ValueError, match="use `holdfast run`"):
        certificate.load("quickstart")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("certify.k=[1,9999]", "points but k = 9999 needs 10000"),
        ("certify.near=1", "near is 1 but the bound of k = 3 needs"),
        ("certify.box=[0,0.5]", "points spans .* but the box is"),
        ("certify.box=[1,0]", "is empty"),
    ],
)
def test_what_does_not_go_with_the_data_is_refused_before_anything_is_fitted(
    tmp_path: Path, change: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        certify.run(recipe("metrics.Euclidean=false", change), tmp_path, None, told, device="cpu")
    assert Scaled.fits == 0


def test_samples_outside_the_box_are_refused_before_anything_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_data("digits", valid=1)
    data.test.x[-1] += 1  # as tabular test points may do
    monkeypatch.setattr(certify, "load_data", lambda *_: data)
    with pytest.raises(ValueError, match=r"x spans .* but the box is"):
        certify.run(
            recipe("metrics.Euclidean=false", "certify.box=[0,1]", "certify.samples=9999"), tmp_path, None, told
        )
    assert Scaled.fits == 0


def test_a_folder_of_other_settings_is_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    certify.run(recipe(), tmp_path, None, told, "Scaled", 0, "cpu")
    other = recipe("certify.samples=4")
    for metric, seed in (("Scaled", 1), ("Euclidean", None)):
        with pytest.raises(ValueError, match="holds certificates of other settings"):
            certify.run(other, tmp_path, None, told, metric, seed, "cpu")
    assert Scaled.fits == 1
    study = certify.run(other, tmp_path, None, told, "Scaled", 0, "cpu")  # made anew, so nothing else is left
    assert [len(run.records) for run in study.runs] == [4, 4]


def test_a_device_without_float64_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "open_fabric", lambda name: SimpleNamespace(device=torch.device(name)))
    with pytest.raises(ValueError, match="device 'mps' has no float64, which certificates need"):
        certify.run(recipe(), tmp_path, None, told, device="mps")


@pytest.mark.parametrize("device", ["tpu", "abacus"])
def test_a_device_that_cannot_be_used_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ValueError, match=f"device {device!r} .*; choose auto"):
        certify.run(recipe(), tmp_path, None, told, device=device)


def test_a_resolved_recipe_reads_back_as_itself() -> None:
    table = recipe("metrics.Scaled={learner='scaled', by=2.0}").table()
    assert certificate.read(json.loads(json.dumps(table))).table() == table


def test_the_command_prints_tables_and_writes_page_and_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [item for change in CHANGES for item in ("--set", change)]
    words = ["holdfast", "certify", "arml-digits", *changes, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*words, "--markdown", str(tmp_path / "told.md"), "--metric", "Euclidean"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "K = 1" in out
    assert "Certified 0.2" in out
    assert str(tmp_path / "out" / "report.html") in out
    assert "holdfast certify arml-digits --set" in (tmp_path / "told.md").read_text()


def test_the_page_and_the_markdown_are_written_again_from_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [item for change in CHANGES for item in ("--set", change)]
    words = ["holdfast", "report", "arml-digits", *changes, "--out", str(tmp_path), "--markdown"]
    monkeypatch.setattr("sys.argv", [*words, str(tmp_path / "again.md")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "holds no certificates to report; run `holdfast certify arml-digits` first" in capsys.readouterr().err
    certify.run(recipe(), tmp_path, None, told, device="cpu")
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
    for words in (["list", "recipes"], ["list", "learners"], ["show", "arml-usps"]):
        monkeypatch.setattr("sys.argv", ["holdfast", *words])
        with pytest.raises(SystemExit):
            main()
    out = capsys.readouterr().out
    assert "arml-pendigits" in out
    assert 'name = "usps"' in out


@pytest.mark.parametrize("name", [name for name in source.names() if name.startswith("arml-")])
def test_every_recipe_that_comes_along_reads_with_the_real_learners(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = certificate.load(name)
    assert set(found.metrics) == {"Euclidean", "NCA", "LMNN", "ITML", "ARML"}
    assert found.certify.k == (1, 11)
    assert len(found.seeds) >= 3


def test_what_is_certified_is_the_classifier_of_the_learners() -> None:
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
