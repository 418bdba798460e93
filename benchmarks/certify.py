"""Times exact 1-NN certificates next to the authors' figures: one JSON file per figure and data set, and a table.

python benchmarks/certify.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]
"""

from bench.certificates import AUTHORS, FULL, TINY, exact, growth, sets
from bench.command import arguments, measured

TITLES = {
    "exact": "Exact radius of the nearest neighbor, Euclidean, seconds per input",
    "growth": "Exact radius as the training set grows",
}
UNITS = [*(f"exact.{name}" for name in AUTHORS), "growth.usps"]
_MEASURES = {"exact": exact, "growth": growth}


def main() -> int:
    """Run the selected measurements and write the table."""
    asked = arguments(__doc__, "runs/bench-certify", UNITS)
    load, sizes = sets(asked.tiny), TINY if asked.tiny else FULL
    return measured(asked, TITLES, lambda figure, name: _MEASURES[figure](load, name, sizes))


if __name__ == "__main__":
    raise SystemExit(main())
