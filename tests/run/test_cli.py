"""The command line: every command, exit codes, and errors in one sentence."""

import errno
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data import DataSet
from holdfast.recipes import kinds, schema, source, toml
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.certify import learners
from holdfast.recipes.tables.model import ModelConfig
from holdfast.records import snapshot
from holdfast.records.records import Records
from holdfast.run import cli
from tiny_study import bits, one_sentence

COMMANDS = {
    "run": ["--out", "--data-dir", "--set", "--device"],
    "certify": ["--metric", "--seed", "--out", "--data-dir", "--markdown", "--set"],
    "train": ["--method", "--seed", "--out", "--data-dir", "--set", "--device"],
    "evaluate": [
        *("--method", "--seed", "--out", "--data-dir", "--set", "--device", "--model", "--weights", "--data"),
        *("--size", "--mean", "--std", "--threat", "--attack", "--samples"),
    ],
    "attack": ["--save", "--seed", "--round", "--out", "--data-dir", "--set", "--device"],
    "report": ["--out", "--set", "--markdown"],
    "sweep": [
        *("--over", "--method", "--trials", "--sampler", "--seed", "--out", "--data-dir", "--set", "--device"),
    ],
    "ledger": ["--out", "--markdown"],
    "list": [],
    "show": ["--set"],
}


def plain(text: str) -> str:
    """Help text without boxes, colors and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_option(call: Any, command: str) -> None:
    done = call(command, "--help")
    assert done.code == 0
    text = plain(done.out)
    function = next(c.callback for c in cli.app.registered_commands if c.callback.__name__.rstrip("_") == command)  # type: ignore[union-attr]
    assert plain(function.__doc__ or "?") in text
    for option in COMMANDS[command]:
        assert re.search(rf"{option}\b.*?[a-z]{{3,}}", text), option
    options = {o for o in re.findall(r"(?<![\w`])--[a-z-]+", text) if o not in ("--help",)}
    assert set(COMMANDS[command]) <= options


def test_top_level_help_shows_where_to_start(call: Any) -> None:
    done = call("--help")
    text = plain(done.out)
    assert done.code == 0
    assert "Start with `holdfast run quickstart`" in text
    assert "Exit codes: 0 done, 1 failed while running, 2 bad input, 130 interrupted" in text
    assert all(f" {command} " in text for command in COMMANDS)
    assert call().code == 2  # without a command only the help is shown


def test_list_shows_options_of_models_and_heads(call: Any) -> None:
    assert 'Options: width = 1024, depth = 3, activation = "relu".' in plain(call("list", "models").out)
    assert "Options: scale = 10.0, margin = 0.2, feature_norm = true," in plain(call("list", "heads").out)


def test_list_has_one_line_for_each_name_off_a_terminal(call: Any) -> None:
    lines = call("list", "recipes").out.splitlines()
    assert [line.split()[0] for line in lines] == source.names()
    assert max(map(len, lines)) > 80


@pytest.mark.parametrize("kind", ["attacks", "methods", "certifiers", "models", "heads", "learners", "data", "recipes"])
def test_list_describes_every_member(call: Any, kind: str) -> None:
    from holdfast import data

    names = {
        "attacks": kinds.names("attack"),
        "methods": kinds.names("method"),
        "certifiers": kinds.names("certifier"),
        "models": kinds.names("encoder"),
        "heads": kinds.names("head"),
        "data": data.names(),
        "learners": list(learners()),
        "recipes": source.names(),
    }
    done = call("list", kind)
    assert done.code == 0
    text = plain(done.out)
    rows = [line.split()[0] for line in done.out.splitlines() if line[:1].strip()]
    assert rows == names[kind]
    assert len(text) > 25 * len(rows)


@pytest.mark.parametrize("name", source.names())
def test_show_prints_a_recipe_that_loads_again(call: Any, name: str, tmp_path: Path) -> None:
    section, key = ("threat", "eps") if schema.load(name).threat else ("data", "valid")
    done = call("show", name, "--set", f"{section}.{key}=1/8")
    assert done.code == 0
    path = tmp_path / "shown.toml"
    path.write_text(done.out)
    assert schema.load(str(path)).table() == schema.load(name, [f"{section}.{key}=1/8"]).table()
    assert tomllib.loads(done.out)[section][key] == 0.125
    again = call("show", path)
    assert again.out == done.out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["run", "quickstrat"], "unknown recipe 'quickstrat'; did you mean 'quickstart'?"),
        (["show", "nowhere.toml"], "there is no recipe file nowhere.toml"),
        (["list", "atacks"], "unknown kind 'atacks'; did you mean 'attacks'?"),
        (["show", "quickstart", "--set", "train.epoch=3"], "unknown key 'epoch' in methods.plain.train; did you mean"),
        (["show", "quickstart", "--set", "train.epochs"], "--set 'train.epochs' is not of the form key=value"),
        (["show", "quickstart", "--set", "threat.eps=-1"], "threat: eps is -1.0 but a radius must be zero or more"),
        (["train", "quickstart", "--method", "TAL"], "unknown method 'TAL'; did you mean 'TLA'?"),
        (["train", "quickstart", "--seed", "9"], "seed 9 is not in the recipe (0, 1, 2); add it with"),
        (["train", "quickstart", "--device", "cudaa"], "device 'cudaa' cannot be used here ("),
        (["train", "quickstart", "--set", "data.name=digit"], "unknown data set 'digit'"),
        (
            ["attack", "quickstart", "TLA", "PDG-40", "--save", "x.npz"],
            "unknown attack 'PDG-40'; did you mean 'PGD-40'?",
        ),
        (["attack", "quickstart", "TAL", "MIM", "--save", "x.npz"], "unknown method 'TAL'; did you mean 'TLA'?"),
        (
            ["attack", "quickstart", "TLA", "MIM", "--save", "x.npz", "--round", "0"],
            "--round is 0 but needs at least one",
        ),
        (
            ["attack", "quickstart", "TLA", "MIM", "--save", "no/x.npz"],
            "--save names no/x.npz, which lies in no, which",
        ),
        (["attack", "quickstart", "TLA", "MIM", "--save", "."], "--save names ., which is a folder"),
        (["evaluate", "quickstart"], "holds no finished model; train plain with seed 0 first"),
        (["train", "arml-digits"], "recipe arml-digits has no [methods] section; use `holdfast certify arml-digits`"),
        (["evaluate", "arml-digits"], "has no [methods] or [models] section; use `holdfast certify arml-digits`"),
        (["report", "quickstart"], "holds no records to report; run `holdfast run quickstart` first"),
        (["report", "quickstart", "--markdown", "no/x.md"], "--markdown names no/x.md, which lies in no"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    call: Any, args: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in one_sentence(call(*args), 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["mnist-mlp", "mnist-lenet-small"])
@pytest.mark.parametrize("folder", [None, "here", "nowhere"])
def test_missing_mnist_files_are_named(
    call: Any, recipe: str, folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (tmp_path / "here").mkdir()
    message = one_sentence(call("run", recipe, *(["--data-dir", folder] if folder else [])), 2)
    assert "mnist needs the files train-images-idx3-ubyte" in message
    assert "--data-dir" in message
    assert sorted(tmp_path.iterdir()) == [tmp_path / "here"]


@pytest.mark.parametrize(
    "args", [["frobnicate"], ["run"], ["run", "a", "b"], ["list", "data", "--quick"], ["attack", "q"]]
)
def test_misspelled_commands_and_options_are_refused(call: Any, args: list[str]) -> None:
    done = call(*args)
    assert done.code == 2
    assert "Usage: " in done.err
    assert "Traceback" not in done.err


def test_traceback_is_shown_on_request(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = call("--traceback", "run", "quickstrat")
    assert done.code == 2
    assert "Traceback (most recent call last)" in done.err
    assert "holdfast: unknown recipe 'quickstrat'" in done.err
    monkeypatch.setenv("HOLDFAST_TRACEBACK", "")
    assert "Traceback" not in call("run", "quickstrat").err


@pytest.mark.parametrize("when", ["loading", "training"])
def test_ctrl_c_exits_with_code_130(
    call: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        function = "run.session.load_for" if when == "loading" else "training.loop.build_optimizer"
        patch.setattr(f"holdfast.{function}", stop)
        done = call("train", tiny, "--out", tmp_path / "out")
    assert done.code == 130
    assert "holdfast: stopped; run the same command again to resume" in done.err
    assert "Traceback" not in done.err


def test_unexpected_error_asks_for_a_bug_report(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("nobody thought of this")

    monkeypatch.setattr(schema, "load", broken)
    done = call("show", "quickstart")
    assert done.code == 1
    assert "nobody thought of this" in done.err
    assert "mistake in holdfast" in done.err
    assert "Traceback" not in done.err


def test_nonfinite_loss_is_reported_in_one_sentence(call: Any, tiny: Path, tmp_path: Path) -> None:
    args = ["train", tiny, "--out", tmp_path / "out", "--method", "plain", "--seed", "0"]
    done = call(*args, "--set", "train.optimizer={name='sgd', lr=1e30}")
    message = one_sentence(done, 1)
    assert re.match(r"the loss is (nan|inf) at step \d+ \(term cross_entropy\); try a smaller learning rate", message)
    assert not (tmp_path / "out" / "plain" / "seed-0" / "trained.json").exists()


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("nth", [1, 4, 8])
def test_full_disk_is_reported_in_one_sentence_and_the_run_resumes(
    call: Any, tiny: Path, tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch, function: str, nth: int
) -> None:
    monkeypatch.setattr("holdfast.run.session.load_for", lambda *_: digits)
    args = ["train", tiny, "--method", "plain", "--seed", "0", "--set", "train.epochs=1", "--out"]
    calls, original = iter(range(1, 1000)), getattr(os, function)

    def full(*given: Any) -> Any:
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        message = one_sentence(call(*args, tmp_path / "out"), 1)
    assert "No space left on device" in message
    folder = tmp_path / "out" / "plain" / "seed-0"
    assert not list(folder.glob(".*"))
    for weights in folder.glob("*.safetensors"):
        snapshot.read(weights)
    assert call(*args, tmp_path / "out").code == 0
    assert call(*args, tmp_path / "whole").code == 0
    assert bits(folder) == bits(tmp_path / "whole" / "plain" / "seed-0")


def test_damaged_weights_are_refused(call: Any, study: SimpleNamespace) -> None:
    path = study.out / "plain" / "seed-0" / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    message = one_sentence(call("evaluate", study.recipe, "--out", study.out), 2)
    assert message.startswith(f"{path} is damaged (")


def test_folder_of_another_recipe_is_refused(call: Any, study: SimpleNamespace) -> None:
    message = one_sentence(call("train", study.recipe, "--out", study.out, "--set", "train.batch=100"), 2)
    assert "holds a model of other settings (train); choose another --out or remove it" in message


def test_a_recipe_with_one_seed_runs_without_transfer_and_says_so(call: Any, tiny: Path, tmp_path: Path) -> None:
    few = ["--set", "seeds=[0]", "--set", "methods.TLA=false", "--set", "evaluate.curve=noise"]
    done = call("run", tiny, "--out", tmp_path / "out", *few)
    assert done.code == 0, done.err
    assert done.err.startswith("holdfast: transfer is left out: it crafts on a model trained with another seed, but")
    records = Records.load(tmp_path / "out" / "plain" / "seed-0" / "records")
    assert "transfer" not in records.attacks
    assert "PGD-3" in records.attacks
    assert "transfer is left out" in (tmp_path / "out" / "report.html").read_text()


def test_one_model_is_trained_then_evaluated(call: Any, tiny: Path, tmp_path: Path) -> None:
    one = ["--out", tmp_path / "out", "--method", "plain", "--seed", "1"]
    done = call("train", tiny, *one)
    assert (done.code, done.out) == (0, f"weights: {tmp_path / 'out'}\n")
    tried, trained = done.err.splitlines()
    assert tried == "try each method: done"
    assert re.fullmatch(r"train plain, seed 1: done \(epoch 2: validation .*% clean, .*% under attack\)", trained)
    assert [p.parent.name for p in tmp_path.rglob("seed-*")] == ["plain"]
    message = one_sentence(call("evaluate", tiny, *one), 2)
    assert "holds no finished model; train plain with seed 0 first" in message  # the source of the transfer
    seeds = ["--set", "seeds=[1]", "--set", "attacks={noise = {}}", "--set", "evaluate={samples = 30}"]
    done = call("evaluate", tiny, *one, *seeds)
    assert done.code == 0, done.err
    assert "| plain " in done.out
    assert done.out.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")


def saved(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("levels", [None, 255])
def test_saved_adversarial_examples_equal_the_judged_ones(
    call: Any, study: SimpleNamespace, tmp_path: Path, digits: DataSet, levels: int | None
) -> None:
    path = tmp_path / "examples.npz"
    more = [] if levels is None else ["--round", levels]
    done = call("attack", study.recipe, "TLA", "PGD-3", "--out", study.out, "--save", path, "--seed", "1", *more)
    assert done.code == 0, done.err
    assert done.out.endswith(f"saved: {path}\n")
    found = saved(path)
    x, x_adv = torch.from_numpy(found["x"]), torch.from_numpy(found["x_adv"])
    test = digits.test.take(torch.arange(60) * len(digits.test) // 60)  # evenly spread over the set
    assert torch.equal(x, test.x)
    assert found["y"].tolist() == test.y.tolist()
    assert found["index"].tolist() == test.index.tolist()
    if levels:
        k = torch.round(x_adv * 255)
        assert torch.equal(x_adv, k / 255)
    distance = (x_adv.double() - x.double()).abs().flatten(1).amax(1)
    assert found["inside"].tolist() == (distance <= 0.2 * (1 + 1e-5) + 1e-7).tolist()
    assert found["inside"].all()
    assert torch.equal(torch.from_numpy(found["distance"]), distance)
    model = build_model(ModelConfig(encoder="tiny", channels=1, width=8), (1, 8, 8), 10, 0)
    model.load_state_dict(snapshot.read(study.out / "TLA" / "seed-1" / "best.safetensors")[0])
    label = model.eval()(x_adv).argmax(1)
    assert found["label"].tolist() == label.tolist()
    assert found["fooled"].tolist() == (label != test.y).tolist()
    right = 100 * (label == test.y).float().mean().item()
    assert done.out.startswith(f"{right:.1f} [")
    assert "of 60 are still classified correctly" in done.out


def test_examples_agree_with_the_records(call: Any, study: SimpleNamespace, tmp_path: Path, digits: DataSet) -> None:

    args = ["--out", study.out, "--save", tmp_path / "e.npz", "--set", "evaluate.samples=9999"]
    done = call("attack", study.recipe, "plain", "PGD-3", *args)  # more samples than exist: all are used
    assert done.code == 0, done.err
    found, records = saved(tmp_path / "e.npz"), Records.load(study.out / "plain" / "seed-0" / "records")
    assert len(found["y"]) == len(digits.test)
    spread = np.isin(found["index"], records.columns["index"])
    assert spread.sum() == 60
    assert found["fooled"][spread].tolist() == records.columns["fooled:linf:PGD-3"].tolist()


def test_attack_without_transfer_needs_no_other_seed(call: Any, study: SimpleNamespace, tmp_path: Path) -> None:
    (study.out / "plain" / "seed-1" / "trained.json").unlink()
    args = ["--out", study.out, "--save", tmp_path / "e.npz"]
    assert call("attack", study.recipe, "plain", "noise", *args).code == 0
    message = one_sentence(call("attack", study.recipe, "plain", "transfer", *args), 2)
    assert "holds no finished model; train plain with seed 1 first" in message


def test_markdown_holds_the_numbers(call: Any, study: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "numbers.md"
    assert call("report", study.recipe, "--out", study.out, "--markdown", path).code == 0
    text = path.read_text()
    assert "| Method |" in text
    assert f"`holdfast run {study.recipe}`" in text
    assert "Versions: " in text


def test_run_ends_with_the_path_of_the_report(call: Any, study: SimpleNamespace) -> None:
    done = call("run", study.recipe, "--out", study.out)
    assert done.code == 0
    assert done.out.splitlines()[-1] == f"report: {study.out / 'report.html'}"
    assert (study.out / "report.html").is_file()
    assert "| TLA " in done.out
    head = next(line for line in done.out.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["Method", "Clean", "Worst case"]
    assert max(len(line) for line in done.out.splitlines() if line.startswith("|")) < 80
    assert len(done.err.splitlines()) == 4  # one line per attacked model; none is trained again


def test_python_m_holdfast_runs_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "show", "quickstart"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == toml.dumps(schema.load("quickstart").table())


def test_installed_command_exits_with_an_error_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "show", "quickstrat"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: unknown recipe 'quickstrat'; did you mean 'quickstart'?")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
