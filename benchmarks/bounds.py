"""Times certificates of networks: smoothing beside plain forward passes, CROWN in batches and beside auto_LiRPA.

python benchmarks/bounds.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]

AUTO_LIRPA_PYTHON names the python of an environment with torch and auto_LiRPA; without it that figure says so.
"""

from bench.bounds import FULL, TINY, allowance, batch, lirpa, sequential, smoothing
from bench.command import arguments, measured

TITLES = {
    "smoothing": "Smoothing and plain forward passes, the mlp with 1,024 units",
    "sequential": "The sequential test at radius 0.5, sigma 0.5, on inputs of known radius",
    "batch": "CROWN on the mlp with 1,024 units at one radius",
    "allowance": "Radii of models of the zoo, with rounding in float32 covered and in real numbers",
    "lirpa": "Lower bounds of margins beside auto_LiRPA's CROWN",
}
UNITS = [
    "smoothing.mlp",
    "sequential.half",
    "batch.mlp",
    "allowance.digits-tla",
    "allowance.mnist-mlp-tla",
    "lirpa.small",
    "lirpa.mlp",
]
_MEASURES = {"smoothing": smoothing, "sequential": sequential, "batch": batch, "allowance": allowance, "lirpa": lirpa}


def main() -> int:
    """Run the selected measurements and write the table."""
    asked = arguments(__doc__, "runs/bench-bounds", UNITS)
    sizes = TINY if asked.tiny else FULL
    return measured(asked, TITLES, lambda figure, name: _MEASURES[figure](name, sizes))


if __name__ == "__main__":
    raise SystemExit(main())
