"""Times metric learners beside metric-learn 0.7: one JSON file per figure, and a table.

python benchmarks/metric.py [--tiny] [--out DIR] [--threads N]
"""

from bench.command import arguments, measured
from bench.fits import FULL, TINY, fits


def main() -> int:
    """Measure the learners and write the table."""
    asked = arguments(__doc__, "runs/bench-metric", ["fits.usps"])
    titles = {"fits": "100 iterations of metric learners"}
    return measured(asked, titles, lambda *_: fits(TINY if asked.tiny else FULL))


if __name__ == "__main__":
    raise SystemExit(main())
