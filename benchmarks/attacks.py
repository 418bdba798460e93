"""Times and judges holdfast's PGD beside its peers: one JSON file per figure and subject, and a table of them all.

python benchmarks/attacks.py --quick | --full | --tiny [--only FIGURE] [--out DIR] [--threads N]
"""

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from bench.ablation import ablation
from bench.budgets import BUDGETS, Budget
from bench.command import code
from bench.compiled import compiled
from bench.memory import memory
from bench.peers import field, said
from bench.speed import pgd, share, undefended
from bench.strength import strength
from bench.subjects import Bench
from bench.table import markdown
from bench.timing import in_force, machine
from bench.training import trained, training_step

from holdfast.records.files import write_text
from holdfast.records.provenance import commit

ALL = ("mlp", "lenet", "conv")
_USED = 0.8  # no figure is begun after this share of the time: it has to end within it


@dataclass(frozen=True)
class Figure:
    """A claim that is measured, for each of its subjects."""

    title: str
    measure: Callable[[Bench, str], dict[str, Any]]
    subjects: tuple[str, ...] = ALL


FIGURES = {
    "pgd": Figure("PGD at full cost: seconds, and times as long as holdfast", pgd),
    "strength": Figure("Robust accuracy under each attack, same eps, steps and step", strength),
    "share": Figure("Operations per second as a share of a matrix product", share),
    "undefended": Figure("PGD-40 on an undefended model", undefended),
    "step": Figure("A step of adversarial training", training_step),
    "memory": Figure("Peak memory of an evaluation", memory, ("lenet",)),
    "ablation": Figure("Each speed-up turned off alone", ablation),
    "compiled": Figure("torch.compile instead of crafting's fused layers", compiled, ("mlp", "conv")),
    "trained": Figure("Robustness of models trained with either crafting", trained, ("mlp",)),
}


def main() -> int:
    """Measure what is asked for and write the table; 1 where a figure failed."""
    asked = _arguments()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    budget, folder = BUDGETS[asked.budget], asked.out / asked.budget
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(budget, asked.out / "models", field())
    print(f"Capabilities in force: {in_force()}")
    if not os.environ.get("HOLDFAST_DATA"):
        print(
            "HOLDFAST_DATA is not set, so every model is measured on digits; set it to the folder of MNIST and CIFAR-10"
        )
    for name, reason in bench.field.absent.items():
        print(f"{name} is absent: {reason}")
    key, deadline = _key(bench), time.monotonic() + 60 * _USED * budget.minutes
    failures = _measure(bench, folder, key, _units(budget, asked.only), deadline)
    stored = {unit: _stored(folder / f"{unit}.json", key) for unit in _units_known()}
    titles = {name: figure.title for name, figure in FIGURES.items()}
    write_text(folder / "table.md", markdown({unit: r for unit, r in stored.items() if r}, titles, code()))
    print(f"{folder / 'table.md'}")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, words in (  # the last one counts, so that `make bench ARGS=--full` need not take --quick away
        ("quick", "within ten minutes (the default); measures everything anew"),
        ("full", "within two hours; called again, it continues with what is missing"),
        ("tiny", "a minute or so, only to see that it works: the numbers mean nothing"),
    ):
        parser.add_argument(f"--{name}", dest="budget", action="store_const", const=name, default="quick", help=words)
    parser.add_argument("--only", action="append", choices=_units_known(), metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="where results and models go (%(default)s)"
    )
    parser.add_argument("--threads", type=int, help="threads of torch; with 1, CPU time is measured")
    return parser.parse_args()


def _units_known() -> list[str]:
    return [*FIGURES, *(f"{name}.{subject}" for name, figure in FIGURES.items() for subject in figure.subjects)]


def _units(budget: Budget, only: list[str] | None) -> list[str]:
    """The parts that are measured and stored one by one, as figure.subject."""
    units = [f"{name}.{subject}" for name, figure in FIGURES.items() for subject in figure.subjects]
    if only is None:
        return [unit for unit in units if budget.allows(unit)]
    return [unit for unit in units if unit in only or unit.partition(".")[0] in only]


def _measure(bench: Bench, folder: Path, key: str, units: list[str], deadline: float) -> list[str]:
    failures = []
    for unit in units:
        path = folder / f"{unit}.json"
        if bench.budget.name == "full" and _stored(path, key):
            print(f"{unit}: measured before")
            continue
        if time.monotonic() > deadline:
            print(f"{unit}: left out, the time is up")
            continue
        name, _, subject = unit.partition(".")
        started = time.monotonic()
        try:
            result = FIGURES[name].measure(bench, subject)
        except Exception as error:  # two hours must not be lost to one figure
            trace = folder / f"{unit}.error.txt"
            write_text(trace, traceback.format_exc())
            print(f"{unit}: failed, {said(error)} (all of it in {trace})")
            failures.append(unit)
            continue
        seconds = time.monotonic() - started
        result["facts"] |= {"seconds": round(seconds, 1), "when": datetime.now(UTC).isoformat(timespec="seconds")}
        result["facts"] |= {**machine(), **bench.field.facts(), "budget": bench.budget.name, "commit": commit()}
        write_text(path, json.dumps({"unit": unit, "key": key, **result}, indent=1) + "\n")
        print(f"{unit}: {seconds:.0f} s")
    return failures


def _stored(path: Path, key: str) -> dict[str, Any] | None:
    """A figure measured with the same code, budget and libraries; older ones must not stand beside new ones."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return stored if stored.get("key") == key else None


def _key(bench: Bench) -> str:
    """What a stored figure depends on: the code, the budget, torch, its threads, capabilities and the peers."""
    parts = [code(), repr(bench.budget), torch.__version__, torch.get_num_threads(), bench.field.facts(), in_force()]
    return sha256(repr(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(main())
