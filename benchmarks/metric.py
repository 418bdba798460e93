"""Times metric learners next to metric-learn 0.7 and on all of MNIST: one JSON file per figure, and a table.

python benchmarks/metric.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]
"""

from typing import Any

from bench import fits, large
from bench.command import arguments, measured

TITLES = {"fits": "100 iterations of metric learners", "large": "Two iterations, and 20 exact certificates, on MNIST"}


def main() -> int:
    """Measure the learners and write the table."""
    asked = arguments(__doc__, "runs/bench-metric", ["fits.usps", "large.mnist"])

    def measure(figure: str, _: str) -> dict[str, Any]:
        if figure == "fits":
            return fits.fits(fits.TINY if asked.tiny else fits.FULL)
        return large.large(large.TINY if asked.tiny else large.SIZES)

    return measured(asked, TITLES, measure)


if __name__ == "__main__":
    raise SystemExit(main())
