"""Recipes with [certificates]: networks are certified beside their attacks, by the certifier of CONTRIBUTING."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import certify, data
from holdfast.recipes import kinds, schema, toml
from holdfast.recipes.stored import read_recipe
from holdfast.records.records import Records
from holdfast.rng import Rng
from holdfast.run.study import study_of
from tiny_study import MLP, one_seed, one_sentence, table

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLES = """
[models.linear]
module = "certified_nets:build"
[metrics.Euclidean]
[certificates.Lipschitz]
[certificates.loose]
name = "lipschitz"
slack = 0.1
[certify]
samples = 20
shard = 6
radii = [0.01, 0.1]"""
RECIPE = one_seed(TABLES, 20, MLP)
NETS = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


@pytest.fixture(autouse=True)
def _printed_certifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The printed file as if it were in the folder of certifiers."""
    (code,) = re.findall(r"```python\n# src/holdfast/certify/lipschitz.py\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "certifiers").mkdir()
    (tmp_path / "certifiers" / "lipschitz.py").write_text(code)
    monkeypatch.setattr(certify, "__path__", [*certify.__path__, str(tmp_path / "certifiers")])
    yield
    sys.modules.pop("holdfast.certify.lipschitz", None)
    vars(certify).pop("lipschitz", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the recipe and the user's network."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    (tmp_path / "certified_nets.py").write_text(NETS)
    yield tmp_path
    sys.modules.pop("certified_nets", None)


def records(name: str) -> Records:
    return Records.load(Path("out") / name / "seed-0" / "records")


def test_every_network_is_certified_by_every_certifier_beside_its_attacks(folder: Path, call: Any) -> None:
    done = call("run", "mine.toml", "--out", "out")
    assert done.code == 0, done.err
    for name in ("plain", "TLA", "linear"):
        found = records(name)
        assert {"noise", "PGD-3"} <= set(found.attacks)
        assert list(found.certificates) == ["Lipschitz", "loose"]
        assert [facts["settings"]["slack"] for facts in found.certificates.values()] == [1e-4, 0.1]
        tight, loose = (found.columns[f"radius:l2:{certifier}"] for certifier in found.certificates)
        assert (tight >= loose).all()
        assert tight.max() > 0
        assert np.isinf(found.columns["upper:l2:loose"]).all()
        assert {"certificate Lipschitz", "certificate loose"} < set(found.spend())
    study = study_of(schema.load("mine.toml"), folder / "out")
    assert [(*key, [run.name for run in runs]) for key, runs in study.certified().items()] == [
        ("", "l2:Lipschitz", ["plain", "TLA", "linear"]),
        ("", "l2:loose", ["plain", "TLA", "linear"]),
        ("K = 1", "l2:neighbors", ["Euclidean"]),
    ]
    assert set(study.attacked()) == {"plain", "TLA", "linear"}
    page = (folder / "out" / "report.html").read_text()
    assert "l2 radii of Lipschitz" in page
    assert "l2 radii of loose" in page
    assert "Certified 0.01" in done.out


def test_radii_are_those_of_the_certifier_and_are_stored_in_parts(folder: Path, call: Any) -> None:
    changes = ["--set", "methods=false", "--set", "metrics=false", "--out", "out"]
    assert call("certify", "mine.toml", *changes).code == 0
    from certified_nets import build  # type: ignore[import-not-found]

    found, samples = records("linear"), data.load_test("digits", None).test.spread(20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(0).fork("weights").seed)
        certifier = kinds.member("certifier", "lipschitz")(model=build())
    expected = certifier(samples.x.float(), rng=Rng(0))
    np.testing.assert_array_equal(found.columns["index"], samples.index)
    np.testing.assert_array_equal(found.columns["label"], expected.label)
    np.testing.assert_allclose(found.columns["radius:l2:Lipschitz"], expected.radius, rtol=1e-9)
    parts = [np.load(path) for path in (folder / "out" / "linear" / "seed-0" / "parts").glob("*.npz")]
    assert sorted(len(part["radius"]) for part in parts if "radius" in part) == [2, 2, 6, 6, 6, 6, 6, 6]
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("parts/*.npz")}
    assert call("certify", "mine.toml", *changes).code == 0
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("parts/*.npz")}
    done = call("report", "mine.toml", *changes, "--set", "certificates.loose.slack=0.2")
    assert "holds records of other settings" in one_sentence(done, 2)


def test_certify_chooses_metrics_and_certified_networks(folder: Path, call: Any) -> None:
    assert call("certify", "mine.toml", "--out", "out", "--metric", "linear").code == 0
    assert sorted(path.parts[1] for path in Path("out").rglob("facts.json")) == ["linear"]
    (folder / "mine.toml").write_text(re.sub(r"\[certificates.*?(?=\[certify)", "", RECIPE, flags=re.DOTALL))
    done = call("certify", "mine.toml", "--out", "again", "--metric", "linear")
    assert "unknown metric 'linear'" in one_sentence(done, 2)


def test_networks_that_a_certifier_cannot_handle_are_refused_before_training(folder: Path, call: Any) -> None:
    (folder / "mine.toml").write_text(RECIPE.replace('encoder = "mlp"\ndepth = 1\n', 'encoder = "tiny"\n'))
    done = call("run", "mine.toml", "--out", "out")
    assert done.code == 2
    assert "methods.plain: certificates.Lipschitz: Lipschitz knows no layer Conv2d; use Linear" in done.err
    assert not list(folder.rglob("*.safetensors"))


def test_recipes_equal_their_resolved_form(folder: Path) -> None:
    recipe = schema.load("mine.toml")
    assert recipe.table()["certificates"] == {
        "Lipschitz": {"name": "lipschitz", "slack": 1e-4},
        "loose": {"name": "lipschitz", "slack": 0.1},
    }
    assert schema.read(tomllib.loads(toml.dumps(recipe.table()))).table() == recipe.table()
    assert read_recipe(json.loads(json.dumps(recipe.table())), "stored").table() == recipe.table()


CERTIFY = {"radii": [0.1], "samples": 10}
GIVEN = {"certificates": {"Lipschitz": {}}, "certify": CERTIFY, "evaluate": {"samples": 10}}
OTHER = {"methods": None, "model": None, "attacks": None, "threat": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"certify": None}, r"^small needs a \[certify\] section$"),
        ({"certificates": None}, r"^small needs a \[metrics\] or \[certificates\] section$"),
        (OTHER | {"metrics": {"E": "euclidean"}}, r"^small needs a \[methods\] or \[models\] section$"),
        ({"evaluate": {"samples": 9}}, "certify.samples is 10 and evaluate.samples 9 .*; give both the same number"),
        ({"certificates": {"noise": "lipschitz"}}, "certificates.noise has the name of another measurement"),
        ({"certificates": {"clean": "lipschitz"}}, "certificates.clean has the name of another measurement"),
        (
            {"certificates": {"A": "neighbors"}},
            "certificates.A: Neighbors does not certify networks; use \\[metrics\\]",
        ),
        ({"certificates": {"lipschits": {}}}, "certificates.lipschits: unknown certifier 'lipschits'; did you mean"),
        ({"certificates": {"Lipschitz": {"slak": 1}}}, "unknown key 'slak' in certificates.Lipschitz; did you mean"),
        ({"certificates": {"Lipschitz": {"slack": -1}}}, "certificates.Lipschitz: slack is -1.0 but must be zero or"),
        ({"certificates": {"Lipschitz": {"slack": "x"}}}, "certificates.Lipschitz.slack is 'x'"),
        (
            {"certificates": {"Lipschitz": {"model": "net"}}},
            "certificates.Lipschitz.model is 'net' but a recipe has no",
        ),
    ],
)
def test_bad_recipes_are_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    assert list(schema.read(table(**GIVEN)).certificates) == ["Lipschitz"]
    given = {key: value for key, value in table(**GIVEN | changes).items() if value is not None}
    with pytest.raises(ValueError, match=message) as caught:
        schema.read(given, "small")
    assert "\n" not in str(caught.value)
