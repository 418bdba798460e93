"""Samples that a certificate proves are not attacked if the recipe says so; without it none of them is broken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.records.records import Records
from tiny_study import MLP, one_seed, one_sentence

TABLES = """
[attacks.PGD-small]
name = "pgd"
eps = 0.02
steps = 5
[attacks.fmn]
eps = 0.02
steps = 10
[attacks.triage]
eps = 0.02
[certificates.crown]
[certificates.latent]
name = "latent_neighbors"
gallery = 50
[certify]
samples = 20
shard = 7
radii = [0.01]"""
RECIPE = one_seed(TABLES, 20, MLP, ("width = 8", "width = 32"), ("epochs = 2", "epochs = 4"))


@pytest.fixture(autouse=True)
def _recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE)


def test_verdicts_are_the_same_and_passes_are_saved(call: Any) -> None:
    found = {}
    for skip in ("false", "true"):  # the second run trains nothing and attacks again, without the proved samples
        done = call("run", "mine.toml", "--set", "methods.TLA=false", "--set", f"evaluate.skip_certified={skip}")
        assert done.code == 0, done.err
        found[skip] = Records.load(next(Path("runs").glob("*/plain/seed-0/records")))
    off, on = found["false"], found["true"]
    radius = off.columns["radius:linf:crown"]
    proved = off.correct & (radius >= 0.02)
    assert 2 <= proved.sum() < off.correct.sum()
    for name, attack in off.attacks.items():
        fooled = off.columns[f"fooled:linf:{name}"]
        if attack.eps == 0.02:
            assert not (fooled & proved).any(), f"{name} broke a certified sample"
            np.testing.assert_array_equal(on.columns[f"proved:linf:{name}"], proved)
            assert on.attacks[name].forwards < attack.forwards
        np.testing.assert_array_equal(on.columns[f"fooled:linf:{name}"], fooled)
        assert f"proved:linf:{name}" not in off.columns
    page = next(Path("runs").glob("*/report.html")).read_text()
    share = f"{100 * proved.mean():.1f} % of the samples are proved at PGD-small and not attacked: about"
    assert share in page


def test_skipping_needs_certificates(call: Any) -> None:
    done = call("run", "quickstart", "--set", "evaluate.skip_certified=true")
    assert "evaluate.skip_certified needs certificates of networks" in one_sentence(done, 2)
