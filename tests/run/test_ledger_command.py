"""The command `holdfast ledger`: which records it reads, and what it writes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.recipes import schema
from holdfast.recipes.build import json_table
from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.run.ledger import evidence
from tiny_study import one_sentence

RECIPE = "mnist-mlp-narrow-medium"


def write(folder: Path, method: str, seed: int, right: np.ndarray, *changes: str, **facts: Any) -> None:
    """Records as the recipe makes them, packed as those that a checkout keeps."""
    recipe = schema.load(RECIPE, changes)
    n = len(right)
    columns = {"index": np.arange(n), "y": np.zeros(n, int), "label": np.zeros(n, int)}
    columns |= {"fooled:linf:PGD-40": ~right, "distance:linf:PGD-40": np.full(n, 0.3), "label:linf:PGD-40": 1 - right}
    given = {"model": method, "seed": seed, "recipe": json_table(recipe.table())}
    given["attacks"] = {"PGD-40": AttackFacts(norm="linf", eps=0.3).facts()}
    Records(columns, given | facts).save(folder / method / f"seed-{seed}" / "records", packed=True)


def halves(n: int = 200) -> np.ndarray:
    return np.arange(n) % 2 == 0


def test_records_are_found_by_recipe_method_and_seed(tmp_path: Path) -> None:
    r = {"r at 0.3": {"value": 1.5, "low": 1.4, "high": 1.6, "n": 9}}
    write(tmp_path / "a", "TLA", 1, halves(), analysis=r)
    write(tmp_path / "a", "AT", 0, ~halves(), "data.verify=true", "attacks.PGD-100=false")
    write(tmp_path / "b", "TLA", 1, ~halves())
    write(tmp_path / "c", "TLA", 0, halves(), "train.epochs=21")
    found, notes = evidence([tmp_path], [RECIPE, "no such recipe"])
    assert [(one.recipe, one.method, one.seed) for one in found] == [(RECIPE, "AT", 0), (RECIPE, "TLA", 1)]
    assert np.array_equal(found[1].reading("PGD-40"), halves())  # of two records of one model the first counts
    assert found[1].reading("r at 0.3").value == 1.5
    assert found[1].reading("worst case") is None  # not all attacks of the recipe were run
    assert found[1].reading("clean").all()
    assert found[1].reading("FGSM") is None
    assert notes == [
        f"{tmp_path}/c/TLA/seed-0/records was left out: its methods.TLA differ from those of the recipe {RECIPE}."
    ]
    assert evidence([tmp_path / "a"], ["mnist-mlp"]) == ([], [])


def test_command_writes_page_and_markdown(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write(tmp_path / "docs/results/records", "AT", seed, np.arange(200) < 90)
        write(tmp_path / "docs/results/records", "plain", seed, np.arange(200) < 0)
    done = call("ledger", "--markdown", "ledger.md")
    assert done.code == 0, done.err
    assert "1 hold, 0 do not hold, 0 are not decided" in done.out
    text = (tmp_path / "ledger.md").read_text()
    assert "## control: holds" in text
    assert "45.00 and 0.00" in text
    assert "<html" in (tmp_path / "runs/ledger/report.html").read_text()


def test_a_folder_that_does_not_exist_is_refused(call: Any, tmp_path: Path) -> None:
    assert "no folder nowhere" in one_sentence(call("ledger", "nowhere"), 2)
