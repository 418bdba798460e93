"""Times a training step of every method beside adversarial training: one JSON file per figure and subject, and a table.

python benchmarks/methods.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import torch
from bench.budgets import FULL, TINY
from bench.defences import sphere, steps
from bench.peers import Field
from bench.subjects import Bench
from bench.table import markdown
from bench.timing import machine

from attacks import Figure, code
from holdfast.report.atomic import write_text
from holdfast.run.study import commit

FIGURES = {
    "steps": Figure("A training step of every method, times a step of AT", steps, ("mlp", "conv")),
    "sphere": Figure("Hypersphere embedding beside AT, in pairs", sphere, ("mlp", "conv")),
}


def main() -> int:
    """Measure what is asked for and write the table."""
    asked = _arguments()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(TINY if asked.tiny else FULL, asked.out / "models", Field({}, {}))
    found = {}
    for name, figure in FIGURES.items():
        for subject in figure.subjects:
            unit = f"{name}.{subject}"
            if asked.only and not {name, unit} & set(asked.only):
                continue
            result = figure.measure(bench, subject)
            result["facts"] |= {**machine(), "when": datetime.now(UTC).isoformat(timespec="seconds")}
            result["facts"] |= {"budget": bench.budget.name, "commit": commit()}
            write_text(asked.out / f"{unit}.json", json.dumps({"unit": unit, **result}, indent=1) + "\n")
            found[unit] = result
            print(f"{unit}: done")
    titles = {name: figure.title for name, figure in FIGURES.items()}
    write_text(asked.out / "table.md", markdown(found, titles, code()))
    print(asked.out / "table.md")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    known = [*FIGURES, *(f"{name}.{subject}" for name, figure in FIGURES.items() for subject in figure.subjects)]
    parser.add_argument("--only", action="append", choices=known, metavar="FIGURE", help=", ".join(known))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-methods"), help="where results go (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
