"""Times metric learners beside metric-learn 0.7: one JSON file per figure, and a table.

python benchmarks/metric.py [--tiny] [--out DIR] [--threads N]
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import torch
from bench.fits import FULL, TINY, fits
from bench.table import markdown
from bench.timing import machine

from attacks import code
from holdfast.report.atomic import write_text
from holdfast.run.study import commit

FIGURES = {"fits.usps": ("100 iterations of metric learners", fits)}


def main() -> int:
    """Measure every figure and write the table."""
    asked = _arguments()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, (_, measure) in FIGURES.items():
        result = measure(TINY if asked.tiny else FULL)
        result["facts"] |= {**machine(), "when": datetime.now(UTC).isoformat(timespec="seconds")}
        result["facts"] |= {"budget": "tiny" if asked.tiny else "full", "commit": commit()}
        write_text(asked.out / f"{name}.json", json.dumps({"unit": name, **result}, indent=1) + "\n")
        found[name] = result
        print(f"{name}: done")
    write_text(
        asked.out / "table.md",
        markdown(found, {name.partition(".")[0]: title for name, (title, _) in FIGURES.items()}, code()),
    )
    print(asked.out / "table.md")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-metric"), help="where results go (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
