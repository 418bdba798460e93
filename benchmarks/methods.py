"""Times a training step of every method beside adversarial training: one JSON file per figure and subject, and a table.

python benchmarks/methods.py [--tiny] [--only FIGURE] [--out DIR] [--threads N]
"""

from bench.budgets import FULL, TINY
from bench.command import arguments, measured
from bench.defenses import sphere, steps
from bench.peers import Field
from bench.subjects import Bench

from attacks import Figure

FIGURES = {
    "steps": Figure("A training step of every method, times a step of AT", steps, ("mlp", "conv")),
    "sphere": Figure("Hypersphere embedding beside AT, in pairs", sphere, ("mlp", "conv")),
}


def main() -> int:
    """Measure what is asked for and write the table."""
    units = [f"{name}.{subject}" for name, figure in FIGURES.items() for subject in figure.subjects]
    asked = arguments(__doc__, "runs/bench-methods", units)
    bench = Bench(TINY if asked.tiny else FULL, asked.out / "models", Field({}, {}))
    titles = {name: figure.title for name, figure in FIGURES.items()}
    return measured(asked, titles, lambda name, subject: FIGURES[name].measure(bench, subject))


if __name__ == "__main__":
    raise SystemExit(main())
