"""Recipes with [certificates.smoothing]: the smoothed network is a classifier of its own beside the attacked one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.recipes import schema
from holdfast.records.records import Records
from holdfast.report.summary import certified_error
from tiny_study import MLP, one_seed, table

TABLES = """
[certificates.smoothing]
sigma = 0.2
n = 200
radii = [0.05, 0.1]
[certificates.loose]
name = "smoothing"
sigma = 0.5
n = 60
alpha = 0.01
[certificates.ibp]
[certify]
samples = 20
shard = 8
radii = [0.05, 0.1]
[methods.noisy]
name = "gaussian"
sigma = 0.2
train = { select = "clean" }"""
RECIPE = one_seed(TABLES, 20, MLP)


def test_smoothed_networks_are_certified_beside_the_attacks_and_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE)
    done = call("run", "mine.toml", "--out", "out")
    assert done.code == 0, done.err
    for name in ("noisy", "plain", "TLA"):
        found = Records.load(Path("out") / name / "seed-0" / "records")
        label, radius = found.columns["prediction:l2:smoothing"], found.columns["radius:l2:smoothing"]
        assert set(radius.tolist()) <= {0.0, 0.05, 0.1}
        assert (radius[label == -1] == 0).all()
        right = label == found.columns["y"]
        for r in (0.05, 0.1):  # a radius that was proved counts at that radius
            assert certified_error(found, "l2:smoothing", r).successes == (~(right & (radius >= r))).sum()
        assert "prediction:linf:ibp" not in found.columns
        assert found.certificates["loose"]["alpha"] == 0.01
    assert (radius > 0).any()
    page = Path("out/report.html").read_text()
    assert "each radius is wrong with a probability of at most 0.001" in page
    assert "each radius is wrong with a probability of at most 0.01" in page
    assert "All l2 radii: certified error of all classifiers" in page
    assert "All linf radii" not in page
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("parts/*.npz")}
    assert call("run", "mine.toml", "--out", "out").code == 0
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("parts/*.npz")}
    again = Records.load(Path("out") / "TLA" / "seed-0" / "records")
    np.testing.assert_array_equal(again.columns["radius:l2:smoothing"], radius)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sigma": 0.0}, "certificates.smoothing: sigma is 0.0 but noise has a standard deviation above 0"),
        ({"alpha": 1.0}, "certificates.smoothing: alpha is 1.0 but it is a probability of failure between 0 and 1"),
        ({"n": 5}, "certificates.smoothing: n is 5, with which nothing can be certified at alpha 0.001"),
        ({"radii": [-0.1]}, r"certificates.smoothing: radii is \[-0.1\] but radii of zero or more"),
        ({"radii": [2.0]}, "radius 2 can never be certified; use a larger n"),
    ],
)
def test_wrong_settings_are_refused_when_the_recipe_is_read(settings: dict[str, Any], sentence: str) -> None:
    given = {"certify": {"radii": [0.1], "samples": 10}, "evaluate": {"samples": 10}}
    with pytest.raises(ValueError, match=sentence) as caught:
        schema.read(table(**given, certificates={"smoothing": settings}), "small")
    assert "\n" not in str(caught.value)
