"""What holdfast.evaluate costs beside the attacks that it runs: the CPU time of one thread, in one run.

python benchmarks/one_call.py [--samples 1000] [--models mlp conv]

The time inside the attacks is measured while holdfast.evaluate runs, so that what slows the machine slows both. The
rest is everything else: checks, digests, the choice of arithmetic and micro-batch, the clean prediction, the judge, and
records. Models are trained first (AT, one epoch) and kept in runs/bench-one-call. Prints a Markdown table.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.subjects import SUBJECTS, dataset, fresh
from torch import nn

import holdfast
from holdfast.evaluation.judge import attack_and_judge
from holdfast.evaluation.measurements import attack

FOLDER = Path("runs/bench-one-call")
SUITES: dict[str, Sequence[str]] = {
    "default attacks": (),
    "pgd:steps=40": ("pgd:steps=40",),
    "fgsm": ("fgsm",),
}


class Timed:
    """An attack, and the CPU time spent in its calls."""

    spent = 0.0

    def __init__(self, attack: Any) -> None:
        self.attack, self.threat = attack, attack.threat

    def __call__(self, *given: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return self.attack(*given, **options)
        finally:
            Timed.spent += time.process_time() - began


def trained(name: str, samples: int) -> nn.Module:
    """An adversarially trained model of a subject."""
    subject = SUBJECTS[name]
    some = dataset(subject.sources, subject.shape)
    batch = some.train.batch(torch.arange(min(samples, len(some.train))))
    fitted = holdfast.fit(
        partial(fresh, name),
        batch.x,
        batch.y,
        threat=subject.threat,
        epochs=1,
        craft="pgd:steps=5",
        out=FOLDER / f"{name}-{some.name}-{samples}",
    )
    return fitted.model


def shares(name: str, samples: int, train: int) -> dict[str, float]:
    """The time outside of the attacks as a share of the time inside, for each suite."""
    subject, model = SUBJECTS[name], trained(name, train)
    test = dataset(subject.sources, subject.shape).test.spread(samples)
    batch, found = test.batch(torch.arange(len(test))), {}
    call = partial(holdfast.evaluate, model, batch.x, batch.y, threat=subject.threat, progress=False)
    call(attacks="fgsm")  # what happens once in a process is not counted: imports, the trial of arithmetic
    for suite, attacks in SUITES.items():
        Timed.spent, began = 0.0, time.process_time()
        call(attacks=attacks)
        found[suite] = (time.process_time() - began) / Timed.spent - 1
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=["mlp", "conv"])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--train", type=int, default=5000)
    asked = parser.parse_args()
    torch.set_num_threads(1)

    def timed(model: Any, attack: Any, *given: Any, **options: Any) -> Any:
        return attack_and_judge(model, Timed(attack), *given, **options)

    attack.attack_and_judge = timed
    found = {name: shares(name, asked.samples, asked.train) for name in asked.models}
    print(f"Time of holdfast.evaluate beside its attacks, {asked.samples} samples, CPU time of one thread\n")
    print("| attacks | " + " | ".join(asked.models) + " |\n| --- |" + " --- |" * len(found))
    for suite in SUITES:
        print(f"| {suite} | " + " | ".join(f"{100 * one[suite]:.1f} %" for one in found.values()) + " |")


if __name__ == "__main__":
    main()
