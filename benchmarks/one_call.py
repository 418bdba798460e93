"""What holdfast.evaluate costs beside the attacks that it runs: the CPU time of one thread, in one run.

python benchmarks/one_call.py [--samples 1000] [--models mlp conv digits-tla]

The time inside the attacks is measured while holdfast.evaluate runs, so that what slows the machine slows both. Beside
it stand two shares: the predictions that any evaluation needs, of the clean samples and of what each attack returned,
which are in float32 on the model itself; and everything else: checks, digests, the choice of arithmetic and
micro-batch, the distances, and records. A model is one of the zoo, or trained first (AT, one epoch) and kept in
runs/bench-one-call. Prints a Markdown table.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.subjects import SUBJECTS, dataset, fresh
from torch import nn

import holdfast
from holdfast import Batch, Threat, zoo
from holdfast.evaluation import judge
from holdfast.evaluation.measurements import attack
from holdfast.geometry import NORMS

FOLDER = Path("runs/bench-one-call")
SUITES: dict[str, Sequence[str]] = {
    "default attacks": (),
    "pgd:steps=40": ("pgd:steps=40",),
    "fgsm": ("fgsm",),
}


class Stopwatch:
    """The CPU time spent in the calls of functions, without that of the calls inside them that are timed too."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(("attacks", "predictions"), 0.0)
        self._inner = [0.0]

    def timed(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as ``what``."""

        def timing(*given: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            began = time.process_time()
            try:
                return call(*given, **options)
            finally:
                whole, inner = time.process_time() - began, self._inner.pop()
                self.spent[what] += whole - inner
                self._inner[-1] += whole

        return timing


class Timed:
    """An attack whose calls are timed."""

    def __init__(self, attack: Any, watch: Stopwatch) -> None:
        self.threat, self._call = attack.threat, watch.timed("attacks", attack)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self._call(*given, **options)


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


def subject(name: str, samples: int, train: int) -> tuple[nn.Module, Batch, Threat]:
    """A model, test samples, and what the adversary may do."""
    if name in SUBJECTS:
        one = SUBJECTS[name]
        model, threat, some = trained(name, train), one.threat, dataset(one.sources, one.shape)
    else:
        known = zoo.card(name)
        worst = known.under("worst case")
        model, threat = holdfast.load_model(name), Threat(NORMS[worst.norm], worst.eps)
        some = dataset((known.data,), known.shape)
    test = some.test.spread(samples)
    return model, test.batch(torch.arange(len(test))), threat


def shares(name: str, samples: int, train: int, watch: Stopwatch) -> dict[str, tuple[float, float]]:
    """The times of predictions and of everything else as shares of the time inside the attacks, for each suite."""
    (model, batch, threat), found = subject(name, samples, train), {}
    call = partial(holdfast.evaluate, model, batch.x, batch.y, threat=threat, progress=False)
    call(attacks="fgsm")  # what happens once in a process is not counted: imports, the trial of arithmetic
    for suite, attacks in SUITES.items():
        watch.spent, began = dict.fromkeys(watch.spent, 0.0), time.process_time()
        call(attacks=attacks)
        whole, inside, predictions = time.process_time() - began, watch.spent["attacks"], watch.spent["predictions"]
        found[suite] = predictions / inside, (whole - predictions) / inside - 1
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=[*SUBJECTS, *zoo.names()], default=["mlp", "conv"])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--train", type=int, default=5000)
    asked = parser.parse_args()
    torch.set_num_threads(1)

    watch = Stopwatch()

    def timed(model: Any, attack: Any, *given: Any, **options: Any) -> Any:
        return judge.attack_and_judge(model, Timed(attack, watch), *given, **options)

    attack.attack_and_judge = timed
    judge._answers = watch.timed("predictions", judge._answers)
    found = {name: shares(name, asked.samples, asked.train, watch) for name in asked.models}
    print(f"CPU time beside that of the attacks, {asked.samples} samples, one thread: predictions + everything else\n")
    print("| attacks | " + " | ".join(asked.models) + " |\n| --- |" + " --- |" * len(found))
    for suite in SUITES:
        cells = (" + ".join(f"{100 * share:.1f} %" for share in one[suite]) for one in found.values())
        print(f"| {suite} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
