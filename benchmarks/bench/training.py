"""Figure 5: a step of adversarial training crafted by ours and by torchattacks, and how robust both leave a model."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.peers import field, ours_leaving, usual
from bench.strength import held, one_sided
from bench.subjects import SUBJECTS, WARMUP, Bench, Subject, fresh
from bench.timing import Times, interleaved
from holdfast import PGD, Adversarial, Batch, Rng, Rows, Terms, adapt
from holdfast.contracts import Method, Needs
from holdfast.crafting.view import unwrapped
from holdfast.losses.classification import cross_entropy
from holdfast.recipes.tables.train import OptimizerConfig
from holdfast.training.optimizer import build_optimizer

RIVAL = "torchattacks"
_JUDGED_STEPS, _LEVEL, _TURNS = 40, 0.01, 4
_SECONDS = 60  # for the turns of one batch size and number of steps


@dataclass(frozen=True, kw_only=True)
class Crafted:
    """Adversarial training whose samples are crafted by a peer; all else is as in holdfast's own method."""

    library: str
    eps: float
    step: float
    steps: int
    warmup: float = 0.0
    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        share = 1.0 if progress >= self.warmup else progress / self.warmup
        craft = field().present[self.library]
        x_adv = craft(unwrapped(model), batch.x, batch.y, share * self.eps, share * self.step, self.steps)
        total = cross_entropy(adapt(model).outputs(x_adv), Rows(batch.y, batch.index)).mean()
        return Terms(total, {"cross_entropy": total})


def _methods(subject: Subject, steps: int, warmup: float) -> dict[str, Method]:
    step = 2.5 * subject.eps / steps
    attack = PGD(threat=subject.threat, steps=steps, step=step, keep="last")
    mine: dict[str, Method] = {"holdfast": Adversarial(attack=attack, warmup=warmup)}
    rival = Crafted(library=RIVAL, eps=subject.eps, step=step, steps=steps, warmup=warmup)
    return mine | ({RIVAL: rival} if RIVAL in field().present else {})


def training_step(bench: Bench, name: str) -> dict[str, Any]:
    """One step of adversarial training: craft, forward, backward, update; with few crafting steps and as published."""
    subject, repeats = SUBJECTS[name], _TURNS * bench.budget.repeats  # steps are short, so they scatter
    rows, headlines, failed = [], [], {}
    for size, steps in product(bench.budget.train_batches, sorted({bench.budget.train_steps, subject.published})):
        x, y = bench.samples(name, size)
        batch = Batch(x, y, torch.arange(len(x)))
        calls = {who: Stepper(fresh(name), method, batch) for who, method in _methods(subject, steps, 0.0).items()}
        times = interleaved(calls, repeats, seconds=_SECONDS)
        failed |= times.failed
        rows += [
            {"batch": size, "steps": steps, "crafted by": who, "median": times.median(who), "seconds": seconds}
            for who, seconds in times.seconds.items()
        ]
        if RIVAL in times.seconds and "holdfast" in times.seconds:
            headlines.append(_headline(times, f"{name}, training step, batch {size}", steps, subject.published))
    turns = min((len(row["seconds"]) for row in rows), default=0)
    facts = {"n": list(bench.budget.train_batches), "repeats": turns, "eps": subject.eps}
    facts |= {"data": bench.data_name(name), "dtype": usual(), "failed": failed}
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _headline(times: Times, what: str, steps: int, published: int) -> dict[str, Any]:
    ratio = times.ratio(RIVAL, "holdfast")["ratio"]
    wanted = {"wanted": ">= 2", "met": ratio >= 2} if steps == published else {"wanted": "", "met": None}
    return {"what": f"{what}, {steps} steps: times as fast as crafted with {RIVAL}", "value": ratio, **wanted}


class Stepper:
    """A model that takes one training step more each time it is called."""

    def __init__(self, model: nn.Module, method: Method, batch: Batch) -> None:
        self.model, self.method, self.batch, self.taken = model, method, batch, 0
        self.optimizer = build_optimizer(OptimizerConfig(), model, method)

    def __call__(self) -> None:
        self.model.train()
        terms = self.method(self.model, self.batch, progress=1.0, rng=Rng(0).fork(self.taken))
        self.optimizer.zero_grad(set_to_none=True)
        terms.total.backward()
        self.optimizer.step()
        self.taken += 1


def trained(bench: Bench, name: str) -> dict[str, Any]:
    """Models trained with either crafting, judged by the same attack: is ours no less robust?"""
    subject, sizes = SUBJECTS[name], bench.sizes(name)
    x, y = bench.samples(name, sizes.judged)
    step, rows = 2.5 * subject.eps / _JUDGED_STEPS, []
    stood: dict[str, list[Any]] = {}
    for seed in bench.budget.seeds:
        for who, method in _methods(subject, sizes.craft_steps, WARMUP).items():
            model = bench.trained(name, method, samples=bench.budget.seed_train, epochs=2, seed=seed)
            x_adv = ours_leaving(model, x, y, subject.eps, step, _JUDGED_STEPS)
            stood.setdefault(who, []).append(held(model, x, x_adv, y, subject))
            rows.append({"seed": seed, "crafted by": who, "robust": float(stood[who][-1].mean())})
    headlines = []
    if RIVAL in stood:
        mine, other = np.concatenate(stood["holdfast"]), np.concatenate(stood[RIVAL])
        p = one_sided(other, mine)
        what = (
            f"{name}, trained: {mine.mean():.2%} robust, with {RIVAL} {other.mean():.2%}; one-sided p that ours is less"
        )
        headlines.append({"what": what, "value": p, "wanted": f"> {_LEVEL}", "met": p > _LEVEL})
    facts = {"n": len(x), "repeats": len(bench.budget.seeds), "steps": _JUDGED_STEPS, "eps": subject.eps}
    facts |= {"data": bench.data_name(name), "dtype": usual(), "trained on": bench.budget.seed_train}
    return {"facts": facts, "rows": rows, "headlines": headlines}
