"""Time and memory of the ratios r and r' of 10,000 samples with 1,024 features, with 1,000 bootstrap draws.

python benchmarks/ratios.py [--samples N] [--features D]

Prints a Markdown table: features without negative values, as after ReLU, whose distances come from class sums, and
signed ones, whose distances are computed in blocks.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from holdfast.analysis.separation import separation
from holdfast.crafting.processor import facts
from holdfast.report.elements.table import listing, markdown_table

KINDS = ("without negative values", "signed")


def main() -> None:
    """Measure each kind in a process of its own, whose peak memory is then that of the kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only is not None:
        print(*measured(asked.samples, asked.features, signed=asked.only == "signed"))
        return
    rows = [[kind, *_alone(kind, asked)] for kind in KINDS]
    print(markdown_table(listing(("Features", "Seconds", "MiB beside the features"), rows)))
    print(f"\n{asked.samples:,} samples of {asked.features:,} features, 1,000 draws, {_machine()}.")


def _machine() -> str:
    return ", ".join(f"{name} {value}" for name, value in facts().items())


def _alone(kind: str, asked: argparse.Namespace) -> list[str]:
    size = ["--samples", str(asked.samples), "--features", str(asked.features)]
    found = subprocess.run([sys.executable, __file__, *size, "--only", kind], check=True, capture_output=True)
    return found.stdout.decode().split()


def measured(samples: int, features: int, *, signed: bool) -> tuple[str, str]:
    """Processor seconds of the call and the growth of the peak memory in MiB."""
    rng = np.random.default_rng(0)
    natural = rng.normal(size=(samples, features)).astype(np.float32)
    natural = natural if signed else np.abs(natural)
    y = np.arange(samples) % 10
    before, start = _peak(), time.process_time()
    separation(natural, y, natural[::-1], y[::-1])
    return f"{time.process_time() - start:.1f}", f"{_peak() - before:.0f}"


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
