"""Figures of the methods: what a training step costs beside adversarial training, predicted and published."""

from math import exp, log, sqrt
from statistics import mean, median, stdev
from typing import Any

import torch
from scipy.stats import t as student

from bench.passes import counted, predicted, rows_of, units
from bench.subjects import SUBJECTS, Bench, Subject, fresh
from bench.timing import interleaved
from bench.training import Stepper
from holdfast import ALP, PGD, TLA, Adversarial, Batch, Plain
from holdfast.contracts import Method
from holdfast.crafting.arithmetic import arithmetic
from holdfast.methods.cure import CURE
from holdfast.methods.llr import LLR
from holdfast.methods.trades import TRADES
from holdfast.methods.triplet import Triplet

BATCH, TURNS, PAIRS = 50, 25, 30
TOGETHER = {"mlp": 15, "conv": 5}  # steps in turns whose medians count: single ones scatter too much
BUILDS = 3  # models of each kind in a pair: those of one kind differ in speed by where they lie in memory
PUBLISHED = {"ALP": 20.89 / 19.22, "TRADES": 25.83 / 19.22, "AT+HE": 19.23 / 19.22}  # seconds of an epoch, Pang 2020
PUBLISHED |= {"ALP+HE": 20.95 / 19.22, "TRADES+HE": 25.84 / 19.22}
SLOWEST, HE_MOST, LLR_MOST = 1.10, 1.03, 5.0


def methods(subject: Subject, steps: int) -> dict[str, tuple[Method, str]]:
    """Every method with its head, at equal crafting steps; and LLR with two."""
    attack, two = (PGD(threat=subject.threat, steps=n, step=2.5 * subject.eps / n, keep="last") for n in (steps, 2))
    alone: dict[str, Method] = {
        "plain": Plain(),
        "AT": Adversarial(attack=attack),
        "ALP": ALP(attack=attack),
        "TRADES": TRADES(attack=attack),
        "LLR": LLR(attack=attack),
        "LLR-2": LLR(attack=two),
        "CURE": CURE(),
        "TLA": TLA(attack=attack, pool=BATCH),
        "TRADES+triplet": Triplet(method=TRADES(attack=attack), pool=BATCH),
    }
    on_sphere = {f"{name}+HE": (alone[name], "hypersphere") for name in ("AT", "ALP", "TRADES")}
    return {name: (method, "linear") for name, method in alone.items()} | on_sphere


def samples(bench: Bench, name: str) -> Batch:
    """A batch with a positive for every sample and a pool; which ones they are costs nothing."""
    x, y = bench.samples(name, 2 * BATCH)
    pool = Batch(x[BATCH:], y[BATCH:], torch.arange(BATCH, len(x)))
    return Batch(x[:BATCH], y[:BATCH], torch.arange(BATCH), x[:BATCH].flip(0), pool)


def steps(bench: Bench, name: str) -> dict[str, Any]:
    """One step of every method, all in turns with the passes that they are made of."""
    many, batch, subject = bench.budget.train_steps, samples(bench, name), SUBJECTS[name]
    chosen, turns = methods(subject, many), _turns(bench, TURNS)
    prices = units(lambda: fresh(name), batch, subject.threat, many)
    steppers = {who: Stepper(fresh(name, head=head), method, batch) for who, (method, head) in chosen.items()}
    with arithmetic("float32"):  # TRADES and LLR always craft with it; ratios are of equal passes
        times = interleaved({**{f"pass {kind}": call for kind, call in prices.items()}, **steppers}, turns)
    seconds = {kind: times.median(f"pass {kind}") for kind in prices}
    counts = {who: counted(fresh(name, head=head), method, batch) for who, (method, head) in chosen.items()}
    foreseen = {who: predicted(count, seconds, many) for who, count in counts.items()}
    rows, headlines = [{"method": f"pass {kind}", "median": value} for kind, value in seconds.items()], []
    for who in chosen:
        measured, guess = times.ratio(who, "AT"), foreseen[who] / foreseen["AT"]
        row = {"method": who, "median": times.median(who), **measured, "predicted": guess, **rows_of(counts[who])}
        rows.append({**row, "published": PUBLISHED.get(who, ""), "seconds": times.seconds[who]})
        over = measured["ratio"] / guess
        what = f"{name}, {who}: times AT, measured {measured['ratio']:.3f} over predicted {guess:.3f}"
        headlines.append({"what": what, "value": over, "wanted": f"<= {SLOWEST}", "met": over <= SLOWEST})
    plain = times.ratio("LLR-2", "plain")["ratio"]
    what = f"{name}, LLR-2: times plain training (CURE {times.ratio('CURE', 'plain')['ratio']:.2f})"
    headlines.append({"what": what, "value": plain, "wanted": f"<= {LLR_MOST}", "met": plain <= LLR_MOST})
    facts = {"n": BATCH, "repeats": turns, "steps": many, "eps": subject.eps, "dtype": "float32"}
    facts |= {"data": bench.data_name(name), "failed": times.failed}
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _turns(bench: Bench, many: int) -> int:
    return bench.budget.repeats if bench.budget.name == "tiny" else many


def upper(ratios: list[float]) -> tuple[float, float]:
    """The geometric mean of ratios and the upper end of its one-sided 95 % interval."""
    logs = [log(ratio) for ratio in ratios]
    room = student.ppf(0.95, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return exp(mean(logs)), exp(mean(logs) + room)


def _sums(values: list[float], many: int) -> list[float]:
    """The sum of each so many that follow each other."""
    return [sum(values[start : start + many]) for start in range(0, len(values), many)]


def sphere(bench: Bench, name: str) -> dict[str, Any]:
    """Adversarial training with and without hypersphere embedding, in pairs."""
    many, batch, subject = bench.budget.train_steps, samples(bench, name), SUBJECTS[name]
    chosen = {who: way for who, way in methods(subject, many).items() if who in ("AT", "AT+HE")}
    pairs, seconds = _turns(bench, PAIRS), {who: [] for who in chosen}
    for number in range(pairs * BUILDS):
        order = list(chosen.items())[:: 1 if number % 2 else -1]
        calls = {who: Stepper(fresh(name, head=head), method, batch) for who, (method, head) in order}
        with arithmetic("float32"):
            times = interleaved(calls, TOGETHER[name])
        for who in calls:
            seconds[who].append(times.median(who))
    mine, other = (_sums(seconds[who], BUILDS) for who in ("AT+HE", "AT"))
    middle, most = upper([a / b for a, b in zip(mine, other, strict=True)])
    of = f"{pairs} pairs of {BUILDS} models each with {TOGETHER[name]} steps"
    what = f"{name}, AT+HE: times AT, {middle:.4f}; upper 95 % bound of {of}"
    headlines = [{"what": what, "value": most, "wanted": f"<= {HE_MOST}", "met": most <= HE_MOST}]
    rows = [{"method": who, "median": median(values), "seconds": values} for who, values in seconds.items()]
    facts = {"n": BATCH, "repeats": pairs, "steps": many, "eps": subject.eps, "dtype": "float32"}
    facts |= {"data": bench.data_name(name), "failed": times.failed}
    return {"facts": facts, "rows": rows, "headlines": headlines}
