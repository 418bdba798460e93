"""Compares triage and holdfast's AutoAttack with pyautoattack on models that the schedule of triage was not chosen on.

python benchmarks/verdict.py [--models digits masked ...] [--samples 200] [--runs runs/verdict] [--seeds 1]

`quickstart` are the models of `holdfast run quickstart --out RUNS/quickstart`, `zoo` the MNIST models of the zoo, and
`cifar` is AT of `holdfast run cifar10-convnet-small --out RUNS/cifar`: each study is trained first where it is not yet.
`digits` trains TRADES, LLR, hypersphere embedding, CURE and an undefended model on scikit-learn's digits with the
settings of the quickstart and a seed that it does not have; `masked` hides the gradients of the zoo's model in three
ways; `mlp` and `conv` are the adversarially trained models of benchmarks/attacks.py (HOLDFAST_DATA names the folder of
the data). All attacks see the same samples. CPU seconds of each on one thread, one after the other, for each
model; with --seeds 3 each is run with three seeds, and the mean accuracy is shown with the lowest beside it. A short
attack on a copy of the model goes before, so that no contender pays for what a process does once. --frontier adds
triage with smaller budgets: cost against accuracy, over all models that have survivors, as a table and a picture.
Prints Markdown tables.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import Any, cast

import numpy as np
import torch
from bench.budgets import QUICK
from bench.frontier import Step, svg
from bench.peers import Field
from bench.subjects import SUBJECTS, Bench
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast import LInf, Rng, Rows, Threat, data, load_model
from holdfast.attacks.autoattack import AutoAttack
from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack, Meter
from holdfast.crafting.processor import facts
from holdfast.evaluation.judge import predict
from holdfast.recipes import schema, source
from holdfast.records.files import write_text
from holdfast.run import study
from holdfast.run.session import Session
from holdfast.run.subjects.trained import Trained

MIDDLE, FLAT = 0.5, 0.5  # features of the zoo's model are between 0 and about 4
STANDARD = 1910  # gradients of AutoAttack's standard suite per sample that it never fools
BUDGETS = (5, 60, 110, 165, 215, None)  # from the first stage alone to all of them
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
    methods = {name: {**settings} for name, settings in METHODS.items()}
    changed = {**source.table("quickstart"), "methods": methods, "seeds": [7], "attacks": {"noise": {}}, "evaluate": {}}
    return trained_by(schema.read(changed, "verdict"), runs / "digits", samples)


def studied(name: str, folder: Path, samples: int, method: str | None = None) -> Iterator[Model]:
    """The models of a recipe, or of one of its methods."""
    return trained_by(schema.read(source.table(name), name), folder, samples, method)


def trained_by(recipe: schema.Recipe, folder: Path, samples: int, method: str | None = None) -> Iterator[Model]:
    """The models of a recipe, trained first where they are not."""
    session = Session.open(recipe, folder, None, "cpu", lambda *progress: None)
    rows = study.rows(recipe, ("methods",), method)
    study.prepare(session, rows)
    batch = session.data.test.batch(torch.arange(min(samples, len(session.data.test))))
    for row in rows:
        module = Trained(session).model(row.name, row.seed)
        assert recipe.threat is not None
        yield Model(f"{recipe.data.name}, {row.name}, seed {row.seed}", module, recipe.threat, batch.x, batch.y)


class Masked(nn.Module):
    """A model whose gradients vanish, overflow softmax or are missing where its features are flat."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the masked model."""
        if self.kind == "inputs rounded to 16 levels":
            return cast(Tensor, self.model((x * 16).round() / 16))
        if self.kind == "logits x 1000":
            return cast(Tensor, 1000 * self.model(x))
        features = self.model.encoder(x)
        kept = torch.where((features - MIDDLE).abs() > FLAT, features, MIDDLE)
        return cast(Tensor, self.model.head(kept))


def masked(samples: int) -> Iterator[Model]:
    """The zoo's model with its gradients masked in three ways."""
    batch = data.load("digits").test.batch(torch.arange(min(samples, 359)))
    for kind in ("inputs rounded to 16 levels", "logits x 1000", "features near their middle made flat"):
        model = Masked(load_model("digits-tla"), kind).eval()
        yield Model(f"digits, TLA, {kind}", model, Threat(LInf(), 0.2), batch.x, batch.y)


def zoo(samples: int) -> Iterator[Model]:
    """The MNIST models of the zoo."""
    batch = data.load("mnist").test.batch(torch.arange(samples))
    for name in ("mnist-mlp-at", "mnist-mlp-tla"):
        yield Model(f"zoo, {name}", load_model(name), Threat(LInf(), 0.3), batch.x, batch.y)


def images(name: str, runs: Path, samples: int) -> Iterator[Model]:
    """The adversarially trained model of a subject of benchmarks/attacks.py."""
    bench = Bench(QUICK, runs / "models", Field({}, {}))
    x, y = bench.samples(name, samples)
    yield Model(f"{bench.data_name(name)}, {name}, AT", bench.robust(name), SUBJECTS[name].threat, x, y)


def named(name: str, runs: Path, samples: int) -> Iterator[Model]:
    """The models of a name that --models takes."""
    if name == "masked":
        return masked(samples)
    if name == "zoo":
        return zoo(samples)
    if name == "quickstart":
        return studied("quickstart", runs / "quickstart", samples)
    if name == "cifar":
        return studied("cifar10-convnet-small", runs / "cifar", samples, "AT")
    return digits(runs, samples) if name == "digits" else images(name, runs, samples)


def ours(attack: Attack, model: Model, seeds: int) -> "Measured":
    """The samples that hold under an attack of holdfast, its seconds and its passes, for each seed."""
    masks, meter, started = [], Meter(), time.process_time()
    for seed in range(seeds):
        rows = Rows(model.y, torch.arange(len(model.y)))
        x_adv = attack(model.module, model.x, rows, rng=Rng(seed), watch=meter)
        assert model.threat.contains(x_adv, model.x).all()
        masks.append(held(model, x_adv))
    return Measured(masks, (time.process_time() - started) / seeds, meter)


def theirs(model: Model, seeds: int) -> "Measured":
    """The samples that hold under pyautoattack's standard suite, and its seconds, for each seed."""
    from pyautoattack import AutoAttack as Peer

    masks, started = [], time.process_time()
    for seed in range(seeds):
        peer = Peer(model.module, norm="Linf", eps=model.threat.eps, version="standard", seed=seed, device="cpu")
        with redirect_stdout(StringIO()):
            x_adv, *_ = peer.run_standard_evaluation(model.x, model.y, batch_size=250)
        masks.append(held(model, x_adv))
    return Measured(masks, (time.process_time() - started) / seeds)


def warm(model: Model) -> None:
    """Run a short attack of each contender on a copy of the model."""
    from pyautoattack.autopgd_base import APGDAttack

    copy, x, y = deepcopy(model.module), model.x[:4], model.y[:4]
    Triage(threat=model.threat, budget=10)(copy, x, y, rng=Rng(0))
    APGDAttack(copy, n_iter=5, eps=model.threat.eps, device="cpu").perturb(x, y)


def held(model: Model, x_adv: Tensor) -> NDArray[np.bool_]:
    """Which samples are classified correctly at the adversarial points."""
    return np.asarray((predict(model.module, x_adv, Rng(1)) == model.y).numpy())


@dataclass(frozen=True)
class Measured:
    """The samples that hold for each seed, the mean CPU seconds of a seed, and the passes of all seeds."""

    masks: list[NDArray[np.bool_]]
    seconds: float
    meter: Meter = field(default_factory=Meter)

    @property
    def accuracy(self) -> str:
        """Mean robust accuracy over the seeds, and the lowest where there are several."""
        shares = [100 * float(mask.mean()) for mask in self.masks]
        mean = f"{sum(shares) / len(shares):.1f}"
        return f"{mean} ({min(shares):.1f})" if len(shares) > 1 else mean

    @property
    def left(self) -> float:
        """Mean robust accuracy in percent."""
        return sum(100 * float(mask.mean()) for mask in self.masks) / len(self.masks)

    def passes(self, standing: int) -> str:
        """Backward and forward passes of a seed, for each sample left standing."""
        cost, runs = self.meter.cost, standing * len(self.masks)
        return f"{cost.backwards / runs:.0f} / {cost.forwards / runs:.0f}"


def compared(model: Model, seeds: int, suite: bool) -> tuple[str, Measured]:
    """A line of the table, and pyautoattack's result."""
    warm(model)
    quick = ours(Triage(threat=model.threat), model, seeds)
    full = ours(AutoAttack(threat=model.threat), model, seeds) if suite else None
    peer = theirs(model, seeds)
    standing = max(1, int(peer.masks[0].sum()))
    cells = [model.name, str(len(model.y)), peer.accuracy, quick.accuracy, f"{peer.seconds:.1f}"]
    cells += [f"{peer.seconds / quick.seconds:.1f}", quick.passes(standing)]
    if full is not None:
        cells += [full.accuracy, f"{peer.seconds / full.seconds:.1f}", full.passes(standing)]
    return f"| {' | '.join(cells)} |", peer


def frontier(models: Sequence[tuple[Model, Measured]], seeds: int, picture: Path) -> Iterator[str]:
    """Lines of a table: the gradients of triage with rising budgets, and how far it is above pyautoattack."""
    titles = ["budget", "gradients per survivor", "seconds", "points above pyautoattack, mean", "largest"]
    yield f"| {' | '.join(titles)} |\n| {' | '.join(['---'] * len(titles))} |"
    steps = []
    for budget in BUDGETS:
        found = [(ours(Triage(threat=model.threat, budget=budget), model, seeds), peer) for model, peer in models]
        above = [quick.left - peer.left for quick, peer in found]
        costs = [quick.meter.cost.backwards / seeds / max(1, int(peer.masks[0].sum())) for quick, peer in found]
        name = "none (as chosen)" if budget is None else str(budget)
        means = f"{mean(costs):.0f} | {mean(quick.seconds for quick, _ in found):.2f} | {mean(above):+.2f}"
        yield f"| {name} | {means} | {max(above):+.2f} |"
        steps.append(Step(name, mean(costs), mean(above)))
    write_text(picture, svg(steps, STANDARD))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = ["digits", "quickstart", "masked", "zoo", "cifar", "mlp", "conv"]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--frontier", type=Path, help="file of the picture, an SVG")
    parser.add_argument("--no-suite", dest="suite", action="store_false", help="without our own autoattack")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(", ".join(f"{name} {value}" for name, value in facts().items()))
    print(
        "Robust accuracy in percent, mean over the seeds (the lowest of them); passes are backward / forward of one "
        "seed, for each sample that pyautoattack leaves standing."
    )
    titles = ["model", "n", "pyautoattack", "triage", "pyautoattack, CPU seconds", "triage, times as fast"]
    titles += ["passes of triage"]
    if asked.suite:
        titles += ["autoattack", "autoattack, times as fast", "passes of autoattack"]
    print(f"\n| {' | '.join(titles)} |\n| {' | '.join(['---'] * len(titles))} |")
    standing: list[tuple[Model, Measured]] = []
    for name in asked.models:
        for model in named(name, asked.runs, asked.samples):
            line, peer = compared(model, asked.seeds, asked.suite)
            print(line, flush=True)
            if peer.left > 0:
                standing.append((model, peer))
    if asked.frontier is not None:
        print()
        for line in frontier(standing, asked.seeds, asked.frontier):
            print(line, flush=True)


if __name__ == "__main__":
    main()
