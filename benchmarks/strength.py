"""Compares the strength of every attack that a peer has, at equal steps, on the same models and samples.

python benchmarks/strength.py [--models digits-tla digits mnist-mlp-at conv] [--samples 200] [--out FILE]

`digits-tla` and `mnist-mlp-at` are models of the zoo, `digits` is the TRADES model of benchmarks/verdict.py and `conv`
the adversarially trained model of benchmarks/attacks.py (HOLDFAST_DATA names the folder of the data). Only samples that
are classified correctly are attacked. holdfast's judge decides for all alike which points are inside the threat and
fool the model. An attack with a fixed budget must fool at least as many samples as the peer that fools most (one-sided
exact McNemar test at 1 %), a minimal-norm attack must have a median distance of at most 1.02 times the least of the
peers; the distance of a sample that is not fooled is infinite. A second table has the attacks of a fixed budget in
float32 and in bfloat16, over three seeds. Writes a Markdown page; --tiny only shows that it works.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from bench.parity import CONTESTS, Contest, Outcome, judged, peers_of
from bench.peers import said
from bench.strength import one_sided
from verdict import Model, digits, images, zoo

from holdfast import LInf, Threat, data, load_model
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.processor import facts
from holdfast.evaluation.judge import predict
from holdfast.records.files import write_text
from holdfast.rng import Rng

LEVEL, FARTHEST = 0.01, 1.02
SEEDS = range(3)
MODELS = ["digits-tla", "digits", "mnist-mlp-at", "conv"]


def models(names: list[str], runs: Path, samples: int) -> Iterator[Model]:
    """The models with twice as many samples as are asked for: some are misclassified."""
    for name in names:
        if name == "digits-tla":
            batch = data.load("digits").test.batch(torch.arange(min(2 * samples, 359)))
            yield Model("digits, zoo's TLA", load_model(name), Threat(LInf(), 0.2), batch.x, batch.y)
        elif name == "mnist-mlp-at":
            yield from (model for model in zoo(2 * samples) if name in model.name)
        elif name == "digits":
            yield next(model for model in digits(runs, 2 * samples) if "TRADES" in model.name)
        else:
            yield from images(name, runs, 2 * samples)


def right(model: Model, samples: int) -> Model:
    """The first so many samples that are classified correctly."""
    which = (predict(model.module, model.x, Rng(1)) == model.y).nonzero().squeeze(1)[:samples]
    return Model(model.name, model.module.requires_grad_(False), model.threat, model.x[which], model.y[which])


def row(contest: Contest, model: Model) -> str:
    """A line of the table, and on standard output the errors of peers."""
    mine = judged(contest, model, contest.ours)
    others: dict[str, Outcome] = {}
    for name, craft in peers_of(contest).items():
        try:
            others[name] = judged(contest, model, craft)
        except Exception as error:  # peers raise anything
            print(f"{model.name}, {contest.name}, {name}: {said(error)}")
    if not others:
        return f"| {model.name} | {contest.name} | {mine.summary(contest)} | no peer ran | | |"
    listed = ", ".join(f"{name} {other.summary(contest)}" for name, other in others.items())
    best = max(others, key=lambda name: others[name].rank(contest))
    if contest.minimal:
        ratio = mine.median / others[best].median if others[best].median > 0 else 1.0
        told, met = f"{ratio:.3f} of {best}'s median", mine.median <= FARTHEST * others[best].median
    else:
        p = one_sided(others[best].fooled, mine.fooled)
        told, met = f"p = {p:.2g} beside {best}", p > LEVEL
    cells = [model.name, contest.name, mine.summary(contest), listed, told, "yes" if met else "**no**"]
    return f"| {' | '.join(cells)} |"


def precisions(contest: Contest, model: Model) -> str:
    """A line of the second table: the samples that ours fools in float32 and in bfloat16, for each seed."""
    counts = []
    for name in ("float32", "bfloat16"):
        with arithmetic(name):
            found = [judged(contest, model, partial(contest.ours, seed=seed)).fooled.sum() for seed in SEEDS]
        counts.append(" / ".join(map(str, found)))
    return f"| {' | '.join([model.name, contest.name, *counts])} |"


def table(titles: list[str], lines: Iterator[str]) -> Iterator[str]:
    """The lines of a Markdown table, which are printed too, as they take long."""
    for line in (f"| {' | '.join(titles)} |", f"| {' | '.join(['---'] * len(titles))} |"):
        yield line
    for line in lines:
        print(line, flush=True)
        yield line


def page(some: list[Model], contests: list[Contest], command: str) -> Iterator[str]:
    """The lines of the page."""
    yield from ("# Strength at equal steps", "", f"Written by `{command}`, one thread, one seed of everything.")
    yield ", ".join(f"{name} {value}" for name, value in facts().items()) + "."
    yield "Numbers are samples fooled, of minimal-norm attacks with the median distance in brackets. Wanted: ours fools"
    yield f"no fewer than the best peer (one-sided McNemar test at {LEVEL:.0%}), or its median is at most {FARTHEST}"
    yield "times the least."
    yield from ("", ", ".join(f"{model.name}: n = {len(model.y)}" for model in some) + ".", "")
    titles = ["model", "attack", "ours", "peers", "ours beside the best peer", "met"]
    yield from table(titles, (row(contest, model) for model in some for contest in contests))
    fixed = [contest for contest in contests if contest.norm in ("linf", "l2") and not contest.minimal]
    yield from ("", "Ours in float32 and in bfloat16, samples fooled for three seeds:", "")
    lines = (precisions(contest, model) for model in some for contest in fixed if contest.name != "Square")
    yield from table(["model", "attack", "float32", "bfloat16"], lines)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--attacks", nargs="+", choices=[contest.name for contest in CONTESTS])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/strength.md"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names, samples = (["digits-tla"], 8) if asked.tiny else (asked.models, asked.samples)
    contests = [contest for contest in CONTESTS if asked.attacks is None or contest.name in asked.attacks]
    some = [right(model, samples) for model in models(names, asked.runs, samples)]
    command = f"python {shlex.join(sys.argv)}"
    write_text(asked.out, "\n".join(page(some, contests, command)) + "\n")


if __name__ == "__main__":
    main()
