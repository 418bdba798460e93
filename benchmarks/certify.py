"""Times exact 1-NN certificates beside the authors' figures: one JSON file per figure and data set, and a table.

python benchmarks/certify.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import torch
from bench.certificates import AUTHORS, FULL, TINY, exact, growth, sets
from bench.table import markdown
from bench.timing import machine

from attacks import code
from holdfast.report.atomic import write_text
from holdfast.run.study import commit

TITLES = {
    "exact": "Exact radius of the nearest neighbour, Euclidean, seconds for each input",
    "growth": "The same as the training set grows",
}
UNITS = [*(f"exact.{name}" for name in AUTHORS), "growth.usps"]
_MEASURES = {"exact": exact, "growth": growth}


def main() -> int:
    """Measure what is asked for and write the table."""
    asked = _arguments()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    load, found = sets(asked.tiny), {}
    for unit in UNITS:
        figure, _, name = unit.partition(".")
        if asked.only and not {figure, unit} & set(asked.only):
            continue
        result = _MEASURES[figure](load, name, TINY if asked.tiny else FULL)
        result["facts"] |= {**machine(), "when": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        write_text(asked.out / f"{unit}.json", json.dumps({"unit": unit, **result}, indent=1) + "\n")
        found[unit] = result
        print(f"{unit}: done")
    write_text(asked.out / "table.md", markdown(found, TITLES, code()))
    print(asked.out / "table.md")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    known = [*TITLES, *UNITS]
    parser.add_argument("--only", action="append", choices=known, metavar="FIGURE", help=", ".join(known))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-certify"), help="where results go (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
