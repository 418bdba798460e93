"""The comparison of two checkouts sees every difference, and matches models whatever the layout of their folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import same_results
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = 'title = "tiny"\n[methods.plain]\n'

# a package that notes how it was called and leaves what `holdfast` leaves: here a report and the records of one model
PACKAGE = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
records = out / "plain" / "seed-0" / "records"
records.mkdir(parents=True)
records.joinpath("records.csv").write_text("index,y,label\\n0,1,LABEL\\n")
facts = {"model": "plain", "seed": 0, "weights": "digest", "arguments": sys.argv[1:-1]}
records.joinpath("facts.json").write_text(json.dumps({"facts": facts}))
out.joinpath("report.html").write_text(pathlib.Path(sys.argv[2]).read_text())
"""


def columns(**changes: Any) -> dict[str, np.ndarray]:
    found = {
        "index": np.arange(8),
        "label": np.arange(8) % 2,
        "fooled:linf:PGD": np.arange(8) < 4,
        "distance:linf:PGD": np.where(np.arange(8) < 7, 0.1, np.nan),
    }
    return found | {f"{name}:linf:PGD": value for name, value in changes.items()}


def save(folder: Path, found: dict[str, np.ndarray], tensor: np.ndarray | None = None, **facts: Any) -> None:
    (folder / "records").mkdir(parents=True)
    rows = [",".join(f'"{name}"' for name in found)]
    rows += [",".join(str(value) for value in row) for row in zip(*(c.tolist() for c in found.values()), strict=True)]
    (folder / "records" / "records.csv").write_text("\n".join(rows) + "\n")
    about = {"model": "AT", "seed": 0, "weights": "digest", "commit": "0123456789", "versions": {"threads": "1"}}
    (folder / "records" / "facts.json").write_text(json.dumps({"facts": about | facts}))
    if tensor is not None:
        save_file({"weight": tensor}, folder / "best.safetensors")


def compare(tmp_path: Path) -> list[tuple[str, bool]]:
    first, second = same_results.measured(tmp_path / "before"), same_results.measured(tmp_path / "after")
    return list(same_results.compared("run", first, second))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "| best same | 4 same |"),
        (
            {"fooled": np.arange(8) < 1},
            "3 same; fooled:linf:PGD: differs in 3 of 8 (0 more, 3 fewer fooled; McNemar p = 0.25)",
        ),
        ({"distance": np.nextafter(columns()["distance:linf:PGD"], 1)}, "distance:linf:PGD: differs in 7 of 8"),
        ({"distance": np.full(8, 0.1)}, "distance:linf:PGD: differs in 1 of 8"),
        ({"radius": np.zeros(8)}, "4 same; 1 new"),
    ],
)
def test_columns_are_compared_exactly_and_nan_equals_nan(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    save(tmp_path / "before", columns(), np.ones(2))
    save(tmp_path / "after", columns(**changed), np.ones(2))
    ((row, same),) = compare(tmp_path)
    assert said in row
    assert same == ("differs" not in said)


def test_a_missing_column_and_missing_samples_are_differences(tmp_path: Path) -> None:
    before = columns()
    after = {name: values[:5] for name, values in before.items() if name != "label"}
    said, same = same_results.compared_columns(before, after)
    assert "label: missing after" in said
    assert "index: 8 samples before, 5 after" in said
    assert not same


@pytest.mark.parametrize("changed", [np.array([0.0, 1.0]), np.array([-0.0, 1.0], dtype=np.float32), None])
def test_weights_are_compared_by_their_bits(changed: np.ndarray | None, tmp_path: Path) -> None:
    save(tmp_path / "before", columns(), np.array([0.0, 1.0], dtype=np.float32))
    save(tmp_path / "after", columns(), changed)
    ((row, same),) = compare(tmp_path)
    assert "| best differs | 4 same |" in row
    assert not same


@pytest.mark.parametrize(("digest", "said"), [("digest", "digest same"), ("another", "digest differs")])
def test_models_without_weight_files_are_compared_by_digest(digest: str, said: str, tmp_path: Path) -> None:
    save(tmp_path / "before", columns(), weights="digest")
    save(tmp_path / "after", columns(), weights={"kept": None, "digest": digest})
    ((row, same),) = compare(tmp_path)
    assert f"| {said} | 4 same |" in row
    assert same == (digest == "digest")


def test_nearest_neighbor_classifiers_are_matched_by_k_in_every_layout(tmp_path: Path) -> None:
    recipe = {"certify": {"k": [1, 11]}}
    for k in (1, 11):
        radius = columns(radius=np.full(8, k))
        save(tmp_path / "before" / "NCA" / f"k-{k}" / "seed-0", radius, model="NCA", certifier={"k": k}, recipe=recipe)
        save(tmp_path / "folders" / "NCA" / f"k-{k}" / "seed-0", radius, model="NCA", recipe=recipe)
        save(tmp_path / "names" / str(k), radius, model=f"NCA, K = {k}", recipe=recipe)
        save(tmp_path / "facts" / str(k), radius, model=f"NCA (K={k})", certificates={"neighbors": {"k": k}})
    before = same_results.measured(tmp_path / "before")
    for layout in ("folders", "names", "facts"):
        rows = list(same_results.compared("run", before, same_results.measured(tmp_path / layout)))
        assert [row.split(" |")[0] for row, _ in rows] == ["| run: NCA, K = 1, seed 0", "| run: NCA, K = 11, seed 0"]
        assert all(same for _, same in rows), layout


def test_a_model_on_one_side_only_is_a_difference(tmp_path: Path) -> None:
    for folder, model in (("before/a", "AT"), ("before/b", "ALP"), ("after/a", "AT"), ("after/b", "TLA")):
        save(tmp_path / folder, columns(), model=model)
    rows = dict(compare(tmp_path))
    assert list(rows.values()) == [True, False, False]
    assert "| run: ALP, seed 0 | | only before | |" in rows
    assert "| run: TLA, seed 0 | | only after | |" in rows


def test_two_records_of_one_model_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a", columns())
    save(tmp_path / "b", columns())
    with pytest.raises(SystemExit, match="both hold records"):
        same_results.measured(tmp_path)


def test_the_table_names_what_the_results_were_made_with_where_it_differs(tmp_path: Path) -> None:
    save(tmp_path / "before", columns())
    save(tmp_path / "after", columns(), commit="9876543210", versions={"threads": "2"})
    ((row, _),) = compare(tmp_path)
    assert "| commit 0123456 / 9876543, threads 1 / 2 |" in row


@given(more=st.integers(0, 60), fewer=st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(more: int, fewer: int) -> None:
    expected = binomtest(more, more + fewer).pvalue if more + fewer else 1.0
    assert same_results.mcnemar(more, fewer) == pytest.approx(expected)


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[..., Path]:
    """Make a checkout with a stand-in for the package that predicts one label."""

    def made(name: str, label: int, recipe: str = RECIPE) -> Path:
        package = tmp_path / name / "src" / "holdfast"
        (package / "recipes").mkdir(parents=True)
        (package / "recipes" / "tiny.toml").write_text(recipe)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(PACKAGE.replace("LABEL", str(label)))
        return tmp_path / name

    return made


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def called(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["same_results.py", *map(str, arguments), "--out", str(tmp_path / "out")])
        return same_results.main()

    return called


def test_both_checkouts_run_the_recipe_of_the_first(checkout: Any, script: Any, tmp_path: Path, capfd: Any) -> None:
    first, second = checkout("first", 1), checkout("second", 1, recipe="another recipe")
    assert script(first, second, "--recipe", "tiny") == 0
    assert "All weights and columns are the same." in capfd.readouterr().out
    for side in ("before", "after"):
        assert (tmp_path / "out" / side / "tiny" / "report.html").read_text() == RECIPE
        ((_, found),) = same_results.measured(tmp_path / "out" / side).items()
        assert found.facts["arguments"] == ["run", "tiny.toml", "--set", "arithmetic=float32", "--out"]


def test_a_difference_is_exit_code_1_and_finished_results_are_not_computed_again(checkout: Any, script: Any) -> None:
    first, second = checkout("first", 1), checkout("second", 0)
    assert script(first, second, "--recipe", "tiny") == 1
    for broken in (first, second):
        (broken / "src" / "holdfast" / "__main__.py").write_text("raise SystemExit(3)")
    assert script(first, second, "--recipe", "tiny") == 1


def test_recipes_that_only_certify_are_certified(checkout: Any, tmp_path: Path) -> None:
    first = checkout("first", 1, recipe="[certify]\nk = [1]\n[metrics.NCA]\n")
    assert same_results.prepared(first, "tiny", tmp_path / "inputs") == ("tiny", ["certify", "tiny.toml"])


def test_a_command_that_fails_and_a_recipe_that_is_unknown_end_the_comparison(checkout: Any, script: Any) -> None:
    first = checkout("first", 1)
    with pytest.raises(SystemExit, match="'unknown' names 0 recipe files"):
        script(first, first, "--recipe", "unknown")
    (first / "src" / "holdfast" / "__main__.py").write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match="ended with exit code 3"):
        script(first, first, "--recipe", "tiny")


def test_the_model_from_outside_is_judged_by_this_checkout(script: Any, tmp_path: Path, capfd: Any) -> None:
    folder = tmp_path / "results"
    results = ("--before-results", folder, "--after-results", folder)
    assert script(ROOT, ROOT, "--recipe", "own-model", *results) == 0
    assert "| own-model: nets:build, seed 0 | same | digest same |" in capfd.readouterr().out
    ((_, found),) = same_results.measured(folder).items()
    for name, fooled in found.columns().items():
        if name.startswith("fooled:linf:pgd"):
            assert 0.2 < fooled.mean() < 0.8, name  # neither all nor none, so that a change would show
