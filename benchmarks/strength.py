"""Compares the strength of every attack that a peer has, at equal steps, on the same models and samples.

python benchmarks/strength.py [--models digits-tla digits mlp conv] [--samples 200] [--runs runs/verdict] [--out FILE]

`digits-tla` is the model of the zoo, `digits` the TRADES model of benchmarks/verdict.py, `mlp` and `conv` the
adversarially trained models of benchmarks/attacks.py (HOLDFAST_DATA names the folder of the data). Only samples that
are classified correctly are attacked. holdfast's judge decides for all alike which points are inside the threat and
fool the model. An attack with a fixed budget must fool at least as many samples as the peer that fools most (one-sided
exact McNemar test at 1 %), a minimal-norm attack must have a median distance of at most 1.02 times the least of the
peers; the distance of a sample that is not fooled is infinite. Writes a Markdown page; --tiny only shows that it works.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from bench.parity import CONTESTS, Contest, Outcome, judged, peers_of
from bench.peers import said
from bench.strength import one_sided
from verdict import Model, digits, images

from holdfast import LInf, Threat, data, load_model
from holdfast.crafting.processor import facts
from holdfast.evaluation.judge import predict
from holdfast.records.files import write_text
from holdfast.rng import Rng

LEVEL, FARTHEST = 0.01, 1.02
EASIER = {"mlp": 0.1}  # at its own eps of 0.3 the quickly trained mlp is fooled nearly everywhere


def models(names: list[str], runs: Path, samples: int) -> Iterator[Model]:
    """The models with twice as many samples as are asked for: some are misclassified."""
    for name in names:
        if name == "digits-tla":
            batch = data.load("digits").test.batch(torch.arange(min(2 * samples, 359)))
            yield Model("digits, zoo's TLA", load_model(name), Threat(LInf(), 0.2), batch.x, batch.y)
        elif name == "digits":
            yield next(model for model in digits(runs, 2 * samples) if "TRADES" in model.name)
        else:
            model = next(images(name, runs, 2 * samples))
            yield Model(model.name, model.module, Threat(LInf(), EASIER.get(name, model.threat.eps)), model.x, model.y)


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


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = ["digits-tla", "digits", "mlp", "conv"]
    parser.add_argument("--models", nargs="+", choices=known, default=known[:3])
    parser.add_argument("--attacks", nargs="+", choices=[contest.name for contest in CONTESTS])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--runs", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/strength.md"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names, samples = (["digits-tla"], 8) if asked.tiny else (asked.models, asked.samples)
    lines = [", ".join(f"{name} {value}" for name, value in facts().items()), ""]
    titles = ["model", "attack", "ours", "peers", "ours beside the best peer", "met"]
    lines += [f"| {' | '.join(titles)} |", f"| {' | '.join(['---'] * len(titles))} |"]
    started = time.monotonic()
    for model in models(names, asked.runs, samples):
        some = right(model, samples)
        for contest in CONTESTS:
            if asked.attacks is None or contest.name in asked.attacks:
                lines.append(row(contest, some))
                print(lines[-1], flush=True)
    lines += ["", f"n = {samples}, {(time.monotonic() - started) / 60:.0f} minutes on one thread."]
    write_text(asked.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
