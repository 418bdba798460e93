"""`holdfast analyze` and `holdfast report` of several studies, on the tiny study."""

import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from holdfast import data
from holdfast.analysis.detection import load_detector
from holdfast.evaluation.measurements.features import Features
from holdfast.recipes import schema
from holdfast.records.records import Records
from holdfast.report.analysis import Analysis
from holdfast.run.ledger import estimates
from holdfast.run.session import Session
from holdfast.run.study import report_on
from holdfast.run.subjects.trained import Trained
from tiny_study import TINY, one_sentence

SMALL = {
    "samples": 60,
    "gallery": 200,
    "followed": 12,
    "landscape": 2,
    "restarts": 2,
    "k": "[3]",
    "eps": "[0.1, 0.2]",
    "steps": "[2, 3]",
}
SETTINGS = [word for key, value in SMALL.items() for word in ("--set", f"analyze.{key}={value}")]


@pytest.fixture(scope="module")
def analyzed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny study with the first seed of both methods analyzed; tests only read it."""
    folder = tmp_path_factory.mktemp("analyzed") / "study"
    shutil.copytree(finished, folder)
    recipe = schema.load(str(folder / "tiny.toml"), SETTINGS[1::2])
    session = Session.open(recipe, folder / "out", None, "cpu", lambda *_: None)
    for method in ("plain", "TLA"):
        for network in Trained(session).networks(method, 0):
            session.analyze(network)
    return folder


@pytest.fixture
def copied(analyzed: Path, tmp_path: Path) -> SimpleNamespace:
    shutil.copytree(analyzed, tmp_path / "study")
    return SimpleNamespace(recipe=tmp_path / "study" / "tiny.toml", out=tmp_path / "study" / "out")


def analysis(folder: Path, method: str = "TLA") -> Analysis:
    found = Analysis.load(folder / method / "seed-0")
    assert found is not None
    return found


def test_features_are_those_of_the_trained_network(analyzed: Path) -> None:
    recipe = schema.load(str(analyzed / "tiny.toml"))
    session = Session.open(recipe, analyzed / "out", None, "cpu", lambda *_: None)
    model, digest, _ = Trained(session)._identified("TLA", 0)
    found, digits = analysis(analyzed / "out"), data.load("digits", valid=0.1, seed=0)
    gallery, samples = digits.train.spread(200), digits.test.spread(60)
    with torch.no_grad():
        natural, known = (
            model.outputs(part.batch(torch.arange(len(part))).x).features.numpy() for part in (samples, gallery)
        )
    assert np.allclose(found.natural, natural, atol=1e-5)
    theirs = KNeighborsClassifier(3, metric="cosine", algorithm="brute").fit(known, gallery.y)
    assert found.neighbors.accuracy[0].value == pytest.approx(theirs.score(natural, samples.y))
    assert found.samples.facts["weights"]["digest"] == digest
    assert [(one.eps, one.steps) for one in found.under] == [(0.1, 2), (0.2, 3)]
    assert len(found.followed) == 12


def test_the_threshold_rejects_the_stated_share_of_validation_samples(analyzed: Path) -> None:
    folder = analyzed / "out" / "TLA" / "seed-0" / "inside"
    valid = Records.load(folder / "valid" / "records")
    right = valid.arrays["label:natural"] == valid.columns["y"]
    detector = load_detector(folder / "detector.safetensors")
    scores = detector.score(torch.tensor(valid.arrays["features:features:natural"][right]))
    assert 0.02 < (scores < detector.threshold).float().mean() <= 0.05
    under = analysis(analyzed / "out").under[-1]
    assert under.rejection is not None
    assert under.rejection.adversarial.value >= under.accuracy_aware.value


def test_the_report_shows_the_inside_of_every_analyzed_model(copied: SimpleNamespace, call: Any) -> None:
    done = call("report", copied.recipe, "--out", copied.out, *SETTINGS, "--markdown", copied.out / "page.md")
    assert done.code == 0, done.err
    page, text = (copied.out / "report.html").read_text(), (copied.out / "page.md").read_text()
    ids = ["classes", "features", "map", "retrieval", "drift", "detection", "landscapes", "heads"]
    found = re.findall(r'section id="(.*?)"', page)
    assert [name for name in found if name in ids] == ids
    for method in ("plain", "TLA"):
        one = analysis(copied.out, method)
        assert f"{one.under[0].separation.r_prime.average.value:.3f}" in page
        assert f"{one.under[1].detection_aware.auc.value:.3f}" in text
    assert "Accuracy of nearest neighbors, %:" in text


def test_analyzing_again_measures_nothing(copied: SimpleNamespace, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in copied.out.rglob("inside/*/records/*")}
    assert len(before) == 2 * (4 * 3)
    monkeypatch.setattr("holdfast.attacks._ascent.Loop.__call__", lambda *_, **__: pytest.fail("attacked again"))
    monkeypatch.setattr(Features, "measure", lambda *_, **__: pytest.fail("measured again"))
    done = call("analyze", copied.recipe, "--seed", 0, "--out", copied.out, *SETTINGS)
    assert (done.code, done.out) == (0, f"report: {copied.out / 'report.html'}\n"), done.err
    assert {path: path.read_bytes() for path in copied.out.rglob("inside/*/records/*")} == before


def test_an_interrupted_analysis_goes_on(copied: SimpleNamespace, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Records.load(copied.out / "TLA" / "seed-0" / "inside" / "samples" / "records")
    shutil.rmtree(copied.out / "TLA" / "seed-0" / "inside")
    measure, calls = Features.measure, []

    def interrupted(*given: Any) -> Any:
        calls.append(1)
        return measure(*given)

    monkeypatch.setattr(Features, "measure", interrupted)
    newest = max((copied.out / "TLA" / "seed-0" / "parts").glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    for path in (copied.out / "TLA" / "seed-0" / "parts").glob("*.npz"):
        if "features:features" in np.load(path).files:
            path.unlink()  # one part of features is missing, the others are read
            break
    done = call("analyze", copied.recipe, "--method", "TLA", "--seed", 0, "--out", copied.out, *SETTINGS)
    assert done.code == 0, done.err
    assert len(calls) == 1
    after = Records.load(copied.out / "TLA" / "seed-0" / "inside" / "samples" / "records")
    assert all(np.array_equal(before.arrays[name], after.arrays[name]) for name in before.arrays)


def test_the_ledger_reads_the_numbers_of_an_analysis(copied: SimpleNamespace) -> None:
    folder = copied.out / "TLA" / "seed-0"
    found = estimates(folder, Records.load(folder / "records"))
    one = analysis(copied.out, "TLA")
    assert found["AUC at 0.2, aware attack"] == one.under[-1].detection_aware.auc
    assert found["curvature"] == one.landscape.curvature
    assert all(math.isfinite(number.value) for number in found.values())


def test_a_folder_of_results_names_its_recipe(copied: SimpleNamespace, call: Any) -> None:
    assert call("report", copied.recipe, "--out", copied.out, *SETTINGS).code == 0
    before = (copied.out / "report.html").read_text()
    done = call("report", copied.out)
    assert (done.code, done.out) == (0, f"report: {copied.out / 'report.html'}\n"), done.err
    assert (copied.out / "report.html").read_text() == before


@pytest.mark.parametrize("command", ["report", "analyze"])
def test_an_empty_folder_is_refused(call: Any, tmp_path: Path, command: str) -> None:
    assert "holds no results; name a recipe, or a folder that `holdfast run` has written" in one_sentence(
        call(command, tmp_path), 2
    )


def test_an_analysis_of_other_settings_is_left_out_with_a_warning(copied: SimpleNamespace) -> None:
    changed = schema.load(str(copied.recipe), [*SETTINGS[1::2], "analyze.k=[5]"])
    run = next(run for run in report_on(changed, copied.out) if run.analysis is None and run.left_out)
    assert "is of other settings, so it is not shown; run `holdfast analyze" in run.left_out
    same = schema.load(str(copied.recipe), SETTINGS[1::2])
    assert [run.analysis is not None for run in report_on(same, copied.out)] == [True, False, True, False]


def test_an_analysis_of_another_network_is_left_out_with_a_warning(copied: SimpleNamespace, call: Any) -> None:
    for name in ("samples", "followed"):
        folder = copied.out / "TLA" / "seed-0" / "inside" / name / "records"
        old = Records.load(folder)
        Records(old.columns, {**old.facts, "weights": {"digest": "other"}}, old.arrays).save(folder)
    assert call("report", copied.recipe, "--out", copied.out).code == 0
    page = (copied.out / "report.html").read_text()
    assert "The analysis of TLA (seed 0) is of another network, so it is not shown" in page


def test_an_analysis_needs_no_evaluation(copied: SimpleNamespace, call: Any) -> None:
    for folder in copied.out.glob("*/seed-*/records"):
        shutil.rmtree(folder)
    assert call("report", copied.out).code == 0
    page = (copied.out / "report.html").read_text()
    assert "Where does an attack move the features, and can that be detected?" in page
    assert "no attack was run" not in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["analyze.layer=conv9"], "methods.plain: the model has no layer 'conv9'; it has"),
        (["analyze.samples=11"], "has one sample, so it has no distance within the class"),
        (["analyze.k=[401]"], "methods.plain: k is [401] but the gallery has 200 samples"),
        (["analyze.steps=[2,3,4]"], "steps is [2, 3, 4] for 2 eps; give one number for each eps, or one for all"),
        (["analyze.followed=1"], "2 to 1000 samples can be followed"),
        (["analyze.fpr=1.5"], "fpr is 1.5 but must be a share between 0 and 1"),
        (["analyze.eps=[0.1,0.1]"], "different finite numbers above 0 are needed"),
        (["analyze.gallery=0"], "gallery is 0 but must be at least 1"),
        (["analyze.kk=3"], "unknown key 'kk' in analyze; did you mean 'k'?"),
    ],
)
def test_bad_settings_are_one_sentence(copied: SimpleNamespace, call: Any, changes: list[str], message: str) -> None:
    words = [word for change in changes for word in ("--set", change)]
    done = call("analyze", copied.recipe, "--out", copied.out, "--seed", 0, *SETTINGS, *words)
    assert message in one_sentence(done, 2)


@pytest.mark.parametrize("change", ['analyze.layer="conv9"', 'analyze.layers=["encoder", "conv9"]'])
def test_layers_are_tried_before_training(copied: SimpleNamespace, call: Any, tmp_path: Path, change: str) -> None:
    done = call("analyze", copied.recipe, "--out", tmp_path / "new", *SETTINGS, "--set", change)
    assert "methods.plain: the model has no layer 'conv9'; it has" in one_sentence(done, 2)
    assert not list((tmp_path / "new").rglob("*.safetensors"))


def test_metrics_alone_have_no_inside(call: Any, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        'data = {name = "digits"}\nmetrics = {euclidean = {}}\ncertify = {radii = [0.1]}\nanalyze = {}\n'
    )
    assert "needs a [methods] or [models] section" in one_sentence(call("analyze", tmp_path / "m.toml"), 2)


NETS = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
"""


def test_an_own_model_is_analyzed_from_its_folder(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_inside.py").write_text(NETS)
    given = ("--model", "nets_inside:build", "--data", "digits", "--threat", "linf:0.1", "--attack", "fgsm")
    assert call("evaluate", *given, "--samples", 60, "--out", "own").code == 0
    done = call("analyze", "own", *SETTINGS, "--set", 'analyze.layer="1"', "--set", 'analyze.layers=["2", "3"]')
    assert done.code == 0, done.err
    (folder,) = Path("own").glob("*/seed-0")
    found = Analysis.load(folder)
    assert found is not None
    digits = data.load("digits", valid=0.1, seed=0).test.spread(60)
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12))
    with torch.no_grad():
        assert np.allclose(found.natural, first(digits.batch(torch.arange(60)).x).numpy(), atol=1e-5)
    page = Path("own/report.html").read_text()
    assert 'section id="map"' in page
    for layer in ("2", "3"):
        ratio = found.under[-1].layers[layer].separation.r_prime.average
        assert f"Layer {layer} under PGD-3 at linf 0.2" in page
        assert f"[{ratio.low:.3f}, {ratio.high:.3f}]" in page
    refused = one_sentence(call("analyze", "own", *SETTINGS, "--set", 'analyze.layer="9"'), 2)
    assert "the model has no layer '9'; it has 0, 1, 2, 3" in refused


def test_several_studies_stand_side_by_side(copied: SimpleNamespace, call: Any, tmp_path: Path) -> None:
    other = tmp_path / "other" / "out"
    shutil.copytree(copied.out, other)
    done = call("report", copied.out, other, "--out", tmp_path / "both")
    assert done.code == 0, done.err
    page = (tmp_path / "both" / "report.html").read_text()
    for folder in (copied.out, other):
        for method in ("plain", "TLA"):
            assert f"{folder}: {method}" in page
    assert "for all 12 tests" in page  # each of six pairs at two seeds: the samples are the same
    assert "No paired test" not in page


def test_studies_on_different_data_are_not_tested(finished: Path, call: Any, tmp_path: Path) -> None:
    """Each set of data has rows on the page, but no test."""
    digits = data.load("digits", valid=0.1, seed=0)
    arrays = {}
    for part, split in (("train", digits.train), ("test", digits.test)):
        arrays |= {f"x_{part}": 1 - split.batch(torch.arange(len(split))).x.numpy(), f"y_{part}": split.y.numpy()}
    np.savez(tmp_path / "other.npz", **arrays)
    recipe = tmp_path / "other.toml"
    recipe.write_text(TINY.replace('name = "digits"', f'name = "npz:{tmp_path / "other.npz"}"').replace("TLA", "AT"))
    few = ["methods.plain=false", "seeds=[0]", "attacks.transfer=false"]
    words = [word for change in few for word in ("--set", change)]
    assert call("run", recipe, "--out", tmp_path / "out", *words).code == 0
    done = call(
        "report", finished / "out", tmp_path / "out", "--out", tmp_path / "both", "--set", "evaluate.samples=60"
    )
    assert done.code == 0, done.err
    page = (tmp_path / "both" / "report.html").read_text()
    refused = "were not measured on the same samples, so they cannot be compared; evaluate both on the same data"
    assert f"No paired test: two models of 60 and 60 records {refused}" in page
    assert "p &lt; " not in page


def test_studies_of_different_threats_are_refused(finished: Path, call: Any, tmp_path: Path) -> None:
    recipe, few = (
        finished / "tiny.toml",
        ("--set", "threat.eps=0.1", "--set", "seeds=[0]", "--set", "methods.TLA=false"),
    )
    few = (*few, "--set", "attacks.transfer=false")
    assert call("run", recipe, "--out", tmp_path / "weak", *few).code == 0
    refused = one_sentence(call("report", finished / "out", tmp_path / "weak"), 2)
    assert "is attacked at linf eps 0.2 and" in refused
    assert "cannot stand side by side; name runs of one threat" in refused
    assert "names a study twice" in one_sentence(call("report", finished / "out", finished / "out"), 2)
