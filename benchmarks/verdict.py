"""Compares triage and holdfast's AutoAttack with pyautoattack on models that the schedule of triage was not chosen on.

python benchmarks/verdict.py [--models digits mlp conv] [--samples 200] [--runs runs/verdict] [--seeds 1]

`digits` trains TRADES, LLR, hypersphere embedding, CURE and an undefended model on scikit-learn's digits with the
settings of the quickstart and a seed that it does not have; `mlp` and `conv` are the adversarially trained models of
benchmarks/attacks.py (HOLDFAST_DATA names the folder of the data). All attacks see the same samples. Wall-clock seconds
of the three, one after the other, for each model; with --seeds 3 AutoAttack is run with three seeds and the lowest
accuracy is shown beside the first. Prints a Markdown table.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from bench.budgets import QUICK
from bench.peers import Field
from bench.subjects import SUBJECTS, Bench
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast import Rng, Rows, Threat
from holdfast.attacks.autoattack import AutoAttack
from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack, Meter
from holdfast.crafting.processor import facts
from holdfast.evaluation.judge import predict
from holdfast.recipes import schema, source
from holdfast.run import study
from holdfast.run.session import Session
from holdfast.run.trained import Trained

METHODS = {
    "plain": {"name": "plain", "train": {"select": "clean"}},
    "TRADES": {"name": "trades", "warmup": 0.3},
    "LLR": {"name": "llr", "warmup": 0.3},
    "HE": {"name": "adversarial", "warmup": 0.3, "model": {"head": "hypersphere"}},
    "CURE": {"name": "cure"},
}


@dataclass(frozen=True)
class Model:
    """A model with the threat and the samples of its comparison."""

    name: str
    module: nn.Module
    threat: Threat
    x: Tensor
    y: Tensor


def digits(runs: Path, samples: int) -> Iterator[Model]:
    """Models of methods and a seed that the quickstart does not have."""
    table = source.table("quickstart")
    methods = {name: {**settings} for name, settings in METHODS.items()}
    changed = {**table, "methods": methods, "seeds": [7], "attacks": {"noise": {}}, "evaluate": {}}
    recipe = schema.read(changed, "verdict")
    session = Session.open(recipe, runs / "digits", None, "cpu", lambda *progress: None)
    study.prepare(session, study.rows(recipe, ("methods",)))
    batch = session.data.test.batch(torch.arange(min(samples, len(session.data.test))))
    for name in methods:
        module, _ = Trained(session).model(name, 7)
        assert recipe.threat is not None
        yield Model(f"digits, {name}", module, recipe.threat, batch.x, batch.y)


def images(name: str, runs: Path, samples: int) -> Iterator[Model]:
    """The adversarially trained model of a subject of benchmarks/attacks.py."""
    bench = Bench(QUICK, runs / "models", Field({}, {}))
    x, y = bench.samples(name, samples)
    yield Model(f"{bench.data_name(name)}, {name}, AT", bench.robust(name), SUBJECTS[name].threat, x, y)


def ours(attack: Attack, model: Model) -> tuple[NDArray[np.bool_], float, Meter]:
    """The samples that hold under an attack of holdfast, its seconds, and its passes."""
    meter, started = Meter(), time.perf_counter()
    x_adv = attack(model.module, model.x, Rows(model.y, torch.arange(len(model.y))), rng=Rng(0), watch=meter)
    seconds = time.perf_counter() - started
    assert model.threat.contains(x_adv, model.x).all()
    return held(model, x_adv), seconds, meter


def theirs(model: Model, seed: int) -> tuple[NDArray[np.bool_], float]:
    """The samples that hold under pyautoattack's standard suite, and its seconds."""
    from pyautoattack import AutoAttack as Peer

    peer = Peer(model.module, norm="Linf", eps=model.threat.eps, version="standard", seed=seed, device="cpu")
    started = time.perf_counter()
    with redirect_stdout(StringIO()):
        x_adv, *_ = peer.run_standard_evaluation(model.x, model.y, batch_size=250)
    return held(model, x_adv), time.perf_counter() - started


def held(model: Model, x_adv: Tensor) -> NDArray[np.bool_]:
    """Which samples are classified correctly at the adversarial points."""
    return np.asarray((predict(model.module, x_adv, Rng(1)) == model.y).numpy())


def row(model: Model, seeds: int) -> str:
    """A line of the table."""
    quick, quick_seconds, quick_passes = ours(Triage(threat=model.threat), model)
    full, full_seconds, full_passes = ours(AutoAttack(threat=model.threat), model)
    peers = [theirs(model, seed) for seed in range(seeds)]
    first, seconds = peers[0]
    standing = max(1, int(first.sum()))
    lowest = min(float(mask.mean()) for mask, _ in peers)
    cells = [
        model.name,
        str(len(model.y)),
        f"{100 * first.mean():.1f}" + (f" ({100 * lowest:.1f})" if seeds > 1 else ""),
        f"{100 * full.mean():.1f}",
        f"{100 * quick.mean():.1f}",
        f"{seconds:.1f}",
        f"{seconds / full_seconds:.1f}",
        f"{seconds / quick_seconds:.1f}",
        f"{quick_passes.cost.backwards / standing:.0f} / {quick_passes.cost.forwards / standing:.0f}",
        f"{full_passes.cost.backwards / standing:.0f} / {full_passes.cost.forwards / standing:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=["digits", "mlp", "conv"], default=["digits", "mlp", "conv"])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in facts().items()))
    print(
        "Robust accuracy in percent; passes are backward / forward, for each sample that pyautoattack leaves standing."
    )
    titles = ["model", "n", "pyautoattack", "autoattack", "triage", "pyautoattack, seconds"]
    titles += ["autoattack, times as fast", "triage, times as fast", "passes of triage", "passes of autoattack"]
    print(f"\n| {' | '.join(titles)} |\n| {' | '.join(['---'] * len(titles))} |")
    for name in asked.models:
        found = digits(asked.runs, asked.samples) if name == "digits" else images(name, asked.runs, asked.samples)
        for model in found:
            print(row(model, asked.seeds), flush=True)


if __name__ == "__main__":
    main()
