"""Models trained by an earlier version still load, and evaluating them gives the results that version recorded."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

OLDER = Path(__file__).parent / "older_model"
METHODS = ("plain", "TLA")

Columns = dict[str, list[str]]


def columns(path: Path) -> Columns:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.fixture
def evaluated(tmp_path: Path, call: Callable[..., SimpleNamespace]) -> Path:
    """A copy of the models trained at commit 089fef5, evaluated with the recipe they were trained with."""
    shutil.copytree(OLDER / "models", tmp_path / "models")
    done = call("evaluate", OLDER / "recipe.toml", "--out", tmp_path / "models")
    assert done.code == 0, done.err
    return tmp_path / "models"


def test_models_of_commit_089fef5_are_evaluated_with_the_same_result_for_every_sample(evaluated: Path) -> None:
    for method in METHODS:
        expected = columns(OLDER / f"{method}.csv")
        found = columns(evaluated / method / "seed-0" / "records" / "records.csv")
        assert {name: found[name] for name in expected} == expected, method


def test_evaluating_an_older_model_changes_none_of_its_files(evaluated: Path) -> None:
    stored = [path for path in (OLDER / "models").rglob("*") if path.is_file()]
    assert len(stored) == 5 * len(METHODS)
    for path in stored:
        assert (evaluated / path.relative_to(OLDER / "models")).read_bytes() == path.read_bytes(), path
