"""Shared by tests: a recipe and a data set that train in milliseconds, and child processes that can be killed."""

import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning_fabric import Fabric

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Method
from holdfast.data import DataSet, Split
from holdfast.geometry import LInf, Threat
from holdfast.methods.plain import Plain
from holdfast.recipes.schema import Entry
from holdfast.recipes.tables.model import ModelConfig
from holdfast.recipes.tables.train import OptimizerConfig, TrainConfig
from holdfast.rng import Rng
from holdfast.training.job import Job
from holdfast.training.loop import train

TINY = """
title = "tiny <study>"
seeds = [0, 1]
threads = 1
[data]
name = "digits"
[model]
encoder = "tiny"
channels = 1
width = 8
[threat]
norm = "linf"
eps = 0.2
[train]
epochs = 2
batch = 200
validate_samples = 40
[train.optimizer]
lr = 0.05
[craft]
steps = 2
[validate]
steps = 2
[methods.plain]
train = { select = "clean" }
[methods.TLA]
name = "tla"
warmup = 0.5
[attacks.noise]
[attacks.PGD-3]
name = "pgd"
steps = 3
[attacks."C&W"]
name = "cw_linf"
steps = 2
[attacks.transfer]
attack = { steps = 2 }
[evaluate]
samples = 60
shard = 40
curve = "PGD-3"
eps = [0.05, 0.3]
strip = "PGD-3"
"""
MLP = ('encoder = "tiny"\nchannels = 1\n', 'encoder = "mlp"\ndepth = 1\n')
"""A change of the recipe: a network of linear layers, which certifiers of networks take."""


def one_seed(tables: str, samples: int, *changes: tuple[str, str]) -> str:
    """The recipe with these tables, one seed and no transfer, judged on this many samples."""
    recipe = TINY.replace("seeds = [0, 1]", "seeds = [0]").replace("[attacks.transfer]\nattack = { steps = 2 }\n", "")
    recipe = recipe.replace("samples = 60", f"samples = {samples}")
    for old, new in changes:
        recipe = recipe.replace(old, new)
    return recipe.replace("[methods.plain]", f"{tables}\n[methods.plain]")


THREAT = Threat(LInf(), 0.1)
FABRIC = Fabric(accelerator="cpu", devices=1)


def table(**sections: Any) -> dict[str, Any]:
    """The table of a valid recipe with some sections replaced."""
    smallest = {
        "name": "small",
        "data": {"name": "digits"},
        "model": {"encoder": "tiny"},
        "threat": {"norm": "linf", "eps": 0.2},
        "train": {"epochs": 1},
        "methods": {"plain": {}},
        "attacks": {"noise": {}},
    }
    return smallest | sections


def toy(n: int = 48) -> DataSet:
    """Three classes of 4x4 images; each class has another bright row."""
    y = torch.arange(n) % 3
    x = 0.6 * Rng(1).uniform(torch.empty(n, 1, 4, 4))
    x[torch.arange(n), 0, y] += 0.4
    parts = [Split(x[some], y[some], torch.arange(n)[some]) for some in torch.arange(n).split([n - 18, 9, 9])]
    return DataSet("toy", *parts, ("a", "b", "c"))


def toy_job(folder: Path, method: Method | None = None, seed: int = 0, **config: Any) -> Job:
    """A training job that takes about twenty milliseconds on :func:`toy`."""
    settings = {"epochs": 3, "batch": 8, "optimizer": OptimizerConfig(lr=0.02)} | config
    return Job(
        entry=Entry(method=method or Plain(), train=TrainConfig(**settings)),
        model=ModelConfig(encoder="tiny", channels=1, width=4),
        validate=PGD(threat=THREAT, steps=2),
        seed=seed,
        folder=folder,
    )


def run_job(job: Job, data: DataSet, stop_at: int | None = None) -> Job:
    """Train, or raise KeyboardInterrupt after step ``stop_at``."""

    def tick(done: int, total: int, message: str) -> None:
        if done == stop_at:
            raise KeyboardInterrupt

    train(job, data, FABRIC, tick)
    return job


def at_method(**settings: Any) -> Any:
    """Settings of a method that crafts with a short PGD."""
    return {"attack": PGD(threat=THREAT, steps=2, keep="last")} | settings


def bits(folder: Path) -> dict[str, Any]:
    """The contents of all files of a trained model, except seconds and versions."""
    trained = json.loads((folder / "trained.json").read_text())
    trained.pop("seconds")
    trained.pop("made")
    learned = ["method.safetensors"] if (folder / "method.safetensors").is_file() else []
    names = ["best.safetensors", "last.safetensors", "metrics.jsonl", "job.json", "choices.json", *learned]
    assert sorted(p.name for p in folder.iterdir()) == sorted([*names, "trained.json"])
    return {name: (folder / name).read_bytes() for name in names} | {"trained": trained}


def start(work: Callable[[], object]) -> int:
    """Fork a child process that does this work; returns its id. A fork need not import torch again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child:
        return child
    code = 97
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], object]) -> int:
    """Do the work in a child process; returns its exit code as :func:`ended` does."""
    return ended(start(work))


def die() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def other(job: Job, **config: Any) -> Job:
    """The same job with other training settings."""
    return replace(job, entry=replace(job.entry, train=replace(job.entry.train, **config)))


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """True if two sets of named tensors are equal bit by bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def one_sentence(done: SimpleNamespace, code: int) -> str:
    """The error message of a command, checked to be one line without a traceback and with nothing on stdout."""
    lines = [line for line in done.err.splitlines() if line.startswith("holdfast: ")]
    assert done.code == code, done.err
    assert len(lines) == 1, done.err
    assert "Traceback" not in done.err
    assert not done.out
    return lines[0].removeprefix("holdfast: ")
