"""Sweeps: selection on validation samples, resuming, failed trials, several processes."""

import json
import pickle
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from holdfast.data import DataSet, Split
from holdfast.recipes import schema, toml
from holdfast.recipes.tables.sweep import Axis, Choice, Range, Sampler
from holdfast.records import snapshot
from holdfast.report.sweep import Sweep
from holdfast.run import session, sweep, trials
from holdfast.run.session import Session
from tiny_study import TINY, bits, die, ended, in_child, one_sentence, start

LR = "train.optimizer.lr=1e-3..1e-1:log"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace("epochs = 2", "epochs = 1"))
    return path


def quiet(what: str, done: int, total: int, message: str) -> None:
    """Progress that is not shown."""


def swept(recipe: Path, out: Path, *over: str, **options: Any) -> Sweep:
    wanted = sweep.read(str(recipe), over=over or (LR,), **{"method": "plain", "trials": 3} | options)
    return sweep.run(wanted, Session.open(wanted.recipe, out, None, "cpu", quiet))


def outcomes(found: Sweep) -> list[Any]:
    """The results of a sweep without times."""
    return [replace(trial, seconds=None) for trial in found.trials]


def folder(out: Path, number: int) -> Path:
    return out / "sweep" / "plain" / "trials" / str(number) / "plain" / "seed-0"


def test_best_trial_is_selected_on_validation_and_its_command_reproduces_it(
    recipe: Path, tmp_path: Path, call: Any
) -> None:
    done = call("sweep", recipe, "--method", "plain", "--over", LR, "--trials", 3, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    robust = []
    for number in range(3):
        lines = (folder(tmp_path / "out", number) / "metrics.jsonl").read_text().splitlines()
        robust += [row["robust"] for row in map(json.loads, lines) if row["split"] == "valid"]
    table = pd.read_csv(tmp_path / "out" / "sweep" / "plain" / "trials.csv")
    assert table["robust"].tolist() == robust
    assert table["train.optimizer.lr"].between(1e-3, 1e-1).all()
    assert (table["samples"] == 40).all()
    best = int(table["robust"].idxmax())
    command = done.out.splitlines()[-1].removeprefix("train the best: ")
    assert f"trial {best} (" in done.out
    again = call(*shlex.split(command)[1:], "--seed", 0)
    assert again.code == 0, again.err
    trained = tmp_path / "out" / "sweep" / "plain" / "best" / "plain" / "seed-0"
    assert bits(trained) == bits(folder(tmp_path / "out", best))


class Untouchable(Split):
    """Test samples that raise when they are read."""

    def __len__(self, *_: Any) -> int:
        raise AssertionError("a sweep read the test set")

    batch = take = spread = __len__  # type: ignore[assignment]


def test_sweep_uses_no_test_sample(
    recipe: Path, tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = swept(recipe, tmp_path / "plain")
    other = Untouchable(1 - digits.test.x, digits.test.y.flip(0), digits.test.index)
    with pytest.raises(AssertionError, match="read the test set"):
        other.spread(3)
    monkeypatch.setattr(session, "load_for", lambda recipe, folder: replace(digits, test=other))
    assert outcomes(swept(recipe, tmp_path / "other")) == outcomes(plain)


def test_second_call_resumes_and_repeats_no_trial(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept(recipe, tmp_path / "whole", trials=3)
    first = swept(recipe, tmp_path / "out", trials=2)
    assert outcomes(first) == outcomes(whole)[:2]
    monkeypatch.setattr(pickle, "loads", None)  # reading the journal must not unpickle
    assert outcomes(swept(recipe, tmp_path / "out", trials=3)) == outcomes(whole)
    monkeypatch.setattr(sweep, "_train", None)
    assert outcomes(swept(recipe, tmp_path / "out", trials=3)) == outcomes(whole)


@pytest.mark.parametrize("moment", [1, 3])  # during the first trial, during the second
def test_killed_sweep_resumes_its_unfinished_trial(recipe: Path, tmp_path: Path, moment: int) -> None:
    calls = []
    write = snapshot.write

    def dying(*args: Any) -> None:
        write(*args)
        calls.append(args)
        if len(calls) == moment:
            die()

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot, "write", dying)
            swept(recipe, tmp_path / "out", sampler="tpe")

    assert in_child(work) == -9
    journal = tmp_path / "out" / "sweep" / "plain" / "journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code":')  # as if killed while writing a line
    assert outcomes(swept(recipe, tmp_path / "out", sampler="tpe")) == outcomes(
        swept(recipe, tmp_path / "b", sampler="tpe")
    )


def test_sweep_resumes_after_ctrl_c(recipe: Path, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ["sweep", recipe, "--method", "plain", "--over", LR, "--trials", 2, "--out", tmp_path / "out"]

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_train", stopped)
        done = call(*ask)
        assert done.code == 130
        assert "run the same command again to resume" in done.err
    assert call(*ask).code == 0
    assert outcomes(swept(recipe, tmp_path / "out", trials=2)) == outcomes(swept(recipe, tmp_path / "b", trials=2))


def test_full_disk_stops_the_sweep_and_fails_no_trial(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_train", full)
        with pytest.raises(OSError, match="no space left"):
            swept(recipe, tmp_path / "out", trials=2)
    assert [trial.state for trial in swept(recipe, tmp_path / "out", trials=2).trials] == ["done", "done"]


def test_two_processes_share_the_trials(recipe: Path, tmp_path: Path) -> None:
    log, train = tmp_path / "log", sweep._train
    log.mkdir()

    def watched(which: int) -> Any:
        def one(wanted: Any, session: Any, folder: Path, task: Any) -> Any:
            (log / f"{task.number}-{which}").touch(exist_ok=False)
            limit = time.monotonic() + 60
            while len({path.name[-1] for path in log.iterdir()}) < 2:  # until both processes train
                assert time.monotonic() < limit
                time.sleep(0.01)
            return train(wanted, session, folder, task)

        return one

    def work(which: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "_train", watched(which))
            swept(recipe, tmp_path / "out", trials=5)

    children = [start(lambda which=which: work(which)) for which in range(2)]  # type: ignore[misc]
    assert [ended(child) for child in children] == [0, 0]
    assert sorted(path.name[0] for path in log.iterdir()) == list("01234")
    table = pd.read_csv(tmp_path / "out" / "sweep" / "plain" / "trials.csv")
    assert table["state"].tolist() == ["done"] * 5
    assert table["train.optimizer.lr"].nunique() == 5
    found = swept(recipe, tmp_path / "out", trials=5)
    assert [trial.robust.value for trial in found.trials if trial.robust] == table["robust"].tolist()


def test_failed_trial_is_reported_and_the_others_run(recipe: Path, tmp_path: Path) -> None:
    found = swept(recipe, tmp_path / "out", "train.optimizer.lr=[0.05, 1e38, 0.01]", sampler="grid", trials=None)
    states = {trial.values["train.optimizer.lr"]: trial for trial in found.trials}
    assert sorted(states) == [0.01, 0.05, 1e38]
    assert states[1e38].state == "failed"
    assert "the loss is nan at step" in states[1e38].reason
    assert [states[lr].state for lr in (0.05, 0.01)] == ["done", "done"]
    assert found.best in (states[0.05], states[0.01])
    assert "the loss is nan at step" in (tmp_path / "out" / "sweep" / "plain" / "trials.md").read_text()


def test_sweep_without_a_successful_trial_reports_the_reason(recipe: Path, tmp_path: Path, call: Any) -> None:
    over = "train.optimizer.lr=[1e37, 1e38]"
    done = call("sweep", recipe, "--method", "plain", "--over", over, "--sampler", "grid", "--out", tmp_path / "out")
    assert "no trial of 2 ended well; the first: the loss is nan at step" in one_sentence(done, 1)


def test_grid_runs_every_combination_once(recipe: Path, tmp_path: Path) -> None:
    over = ["train.batch=[100, 200]", "methods.plain.smoothing=[0.0, 0.1]"]
    found = swept(recipe, tmp_path / "out", *over, sampler="grid", trials=None)
    assert sorted(tuple(trial.values.values()) for trial in found.trials) == [
        *((100, 0.0), (100, 0.1), (200, 0.0), (200, 0.1))
    ]
    assert all(trial.state == "done" for trial in found.trials)


def test_duplicate_values_are_not_trained_again(recipe: Path, tmp_path: Path) -> None:
    found = swept(recipe, tmp_path / "out", "train.batch=[100, 200]", sampler="random", trials=5)
    done = [trial for trial in found.trials if trial.state == "done"]
    assert {trial.values["train.batch"] for trial in done} == {100, 200}
    assert len(done) == 2
    same = [trial for trial in found.trials if trial.state == "same"]
    assert len(same) == 3
    for trial in same:
        (first,) = [other for other in done if other.values == trial.values]
        assert trial.reason == f"same values as trial {first.number}"
        assert not folder(tmp_path / "out", trial.number).exists()


def test_folder_of_another_sweep_is_refused(recipe: Path, tmp_path: Path) -> None:
    swept(recipe, tmp_path / "out", trials=1)
    for other in ({"over": ("train.optimizer.lr=1e-3..1e-2:log",)}, {"seed": 1}, {"sampler": "random"}):
        with pytest.raises(ValueError, match="holds a sweep of other settings; choose another --out or remove it"):
            swept(recipe, tmp_path / "out", *other.pop("over", (LR,)), trials=1, **other)  # type: ignore[misc]


def test_command_line_overrides_the_sweep_table_of_the_recipe(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(
        recipe.read_text()
        + """
[sweep]
method = "TLA"
trials = 7
sampler = "random"
seed = 5
[sweep.over]
"methods.TLA.margin" = "0.01..0.5:log"
methods.TLA.lambda1 = "1..4"
train.batch = "50..100"
model.width = [4, 8]
"""
    )
    found = sweep.read(str(recipe))
    assert (found.method, found.trials, found.sampler, found.sampler_seed, found.seed) == ("TLA", 7, "random", 5, 0)
    assert found.space == {
        "methods.TLA.margin": Range(0.01, 0.5, log=True),
        "methods.TLA.lambda1": Range(1, 4),  # the key accepts any number
        "train.batch": Range(50, 100, whole=True),
        "model.width": Choice((4, 8)),
    }
    shown = tmp_path / "shown.toml"
    shown.write_text(toml.dumps(schema.load(str(recipe)).table()))
    assert schema.load(str(shown)).sweep == schema.load(str(recipe)).sweep
    wanted = sweep.read(str(recipe), over=[LR], method="plain", trials=2, sampler="tpe", seed=1)
    assert (wanted.method, wanted.trials, wanted.sampler, wanted.seed) == ("plain", 2, "tpe", 1)
    assert list(wanted.space) == ["train.optimizer.lr"]
    assert sweep.read(str(recipe), ["sweep.seed=9"]).sampler_seed == 9


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--over", "train.optimizer.lrr=0.1..1"], "unknown key 'lrr' in methods.plain.train.optimizer; did you mean"),
        (["--over", "methods.plain.beta=0.1..1"], "unknown key 'beta' in methods.plain"),
        (["--over", "train.optimizer.lr=1..0.1"], "'1..0.1', which holds no values; swap its ends: 0.1..1"),
        (["--over", "train.optimizer.lr=1..1"], "'1..1', which holds no values; give two different ends"),
        (["--over", "train.optimizer.lr=0..1:log"], "'0..1:log' but a log range must begin above 0"),
        (["--over", "train.optimizer.lr=0.1..1:lin"], "after the colon only log is known"),
        (["--over", "train.optimizer.lr=0.1..many"], "but must be a range such as"),
        (["--over", "train.optimizer.lr=0.1..inf"], "both ends must be finite"),
        (["--over", "train.optimizer.lr=0.1"], "over.train.optimizer.lr is 0.1 but must be a range such as"),
        (["--over", "train.batch=[]"], "over.train.batch is [] but needs two or more different values"),
        (["--over", "train.batch=[50, 50]"], "needs two or more different values"),
        (["--over", "train.batch=[[1], [2]]"], "over.train.batch lists [1] but values are finite numbers, texts"),
        (["--over", "train.batch=[50, 0]"], "methods.plain.train: batch is 0 but must be at least 1"),
        (["--over", "train.batch"], "--over 'train.batch' is not of the form key=values"),
        (["--over", LR, "--over", LR], "--over names train.optimizer.lr twice"),
        (["--over", "threat.eps=0.1..0.3"], "threat.eps cannot be swept: trials are judged alike"),
        (["--over", "validate.steps=1..9"], "validate.steps cannot be swept: trials are judged alike"),
        (["--over", "methods.TLA.margin=0.1..0.3"], "only keys under model, train, craft, methods.plain may vary"),
        (["--over", "craft.steps=1..9"], "craft.steps cannot be swept: it changes nothing about plain"),
        (["--over", "train.validate_samples=10..40"], "judged on the same validation samples"),
        (["--over", "train.optimizer.lr=0.1..1", "--sampler", "grid"], "which a grid cannot count; give a list"),
        (["--over", LR, "--trials", "0"], "trials is 0 but must be at least 1"),
        (["--over", LR, "--seed", "7"], "seed 7 is not in the recipe (0, 1)"),
        ([], "nothing to sweep; name a key and its values, e.g. --over"),
    ],
)
def test_invalid_sweeps_are_refused_in_one_sentence(
    recipe: Path, tmp_path: Path, call: Any, options: list[str], expected: str
) -> None:
    done = call("sweep", recipe, "--method", "plain", "--out", tmp_path / "out", *options)
    assert expected in one_sentence(done, 2)
    assert not (tmp_path / "out").exists()


def test_sweep_needs_one_method(recipe: Path, call: Any) -> None:
    assert "choose it with --method: plain, TLA" in one_sentence(call("sweep", recipe, "--over", LR), 2)
    done = call("sweep", recipe, "--method", "plian", "--over", LR)
    assert "unknown method 'plian'; did you mean 'plain'?" in one_sentence(done, 2)


def test_missing_optuna_is_reported_with_its_install_command(
    recipe: Path, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = call("sweep", recipe, "--method", "plain", "--over", LR, "--out", tmp_path / "out")
    message = "holdfast sweep needs the package optuna, which is not installed; run: pip install 'holdfast[sweep]'"
    assert one_sentence(done, 1) == message


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_trial_killed_during_sampling_is_completed(tmp_path: Path, sampler: Sampler) -> None:
    space = {"a": Choice((1, 2)), "b": Range(3, 4, whole=True)}
    draw = trials._draw

    def dying(trial: Any, key: str, axis: Axis) -> Any:
        return die() if key == "b" else draw(trial, key, axis)

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials, "_draw", dying)
            trials.Trials(tmp_path, space, sampler, 0).next(1)

    assert in_child(work) == -9
    (left,) = trials.Trials(tmp_path, space, sampler, 0).known()
    assert (left.state, list(left.values)) == ("running", ["a"])
    task = trials.Trials(tmp_path, space, sampler, 0).next(1)
    assert task is not None
    assert task.number == 0
    assert task.values == {"a": left.values["a"], "b": task.values["b"]}
    assert task.values["b"] in (3, 4)


def test_damaged_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.log").write_text("nothing\n{}\n")
    with pytest.raises(ValueError, match=r"journal.log is damaged \(.*\); remove .* and run again"):
        trials.Trials(tmp_path, {}, "random", 0)


def test_claim_is_released_when_its_process_ends(tmp_path: Path) -> None:
    space = {"a": Range(0, 1)}

    def work() -> None:
        assert trials.Trials(tmp_path, space, "random", 0).next(1) is not None
        die()

    assert in_child(work) == -9
    mine = trials.Trials(tmp_path, space, "random", 0)
    task = mine.next(1)
    assert task is not None
    assert task.number == 0
    assert trials.Trials(tmp_path, space, "random", 0).next(1) is None
    task.claim.release()
    assert trials.Trials(tmp_path, space, "random", 0).next(1) is not None
