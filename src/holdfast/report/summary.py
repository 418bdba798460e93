"""Numbers with their uncertainty: shares with intervals, paired tests, spread over seeds, accuracy against eps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev

import numpy as np

from holdfast.report.records import Mask, Records
from holdfast.report.study import Run, Study

_Z = 1.959963984540054  # the normal quantile at 0.975
_GRID = 21
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Share:
    """So many of ``n`` samples, with the 95 % interval of Wilson (1927)."""

    successes: int
    n: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.n:
            raise ValueError(f"{self.successes} of {self.n} is not a share; give 0 <= successes <= n")

    @staticmethod
    def of(held: Mask) -> Share:
        """The share of samples that are true."""
        return Share(int(held.sum()), len(held))

    @property
    def value(self) -> float:
        """The share itself, nan of no samples."""
        return self.successes / self.n if self.n else math.nan

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self._middle() - self._half() if self.successes else 0.0

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self._middle() + self._half() if self.successes < self.n else 1.0

    def _middle(self) -> float:
        return (self.successes + _Z**2 / 2) / (self.n + _Z**2)

    def _half(self) -> float:
        misses = self.n - self.successes
        return _Z / (self.n + _Z**2) * math.sqrt(self.successes * misses / self.n + _Z**2 / 4)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over ``n`` seeds; one seed has no deviation."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and spread of one number per seed."""
    if not values:
        raise ValueError("there are no values to average; give one per seed")
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mcnemar(a_held: Mask, b_held: Mask) -> float:
    """The exact two-sided p of McNemar's paired test (1947): do two models hold equally many of the same samples?"""
    if a_held.shape != b_held.shape:
        raise ValueError(f"paired samples have shapes {a_held.shape} and {b_held.shape}; give one value per sample")
    only_a, only_b = int((a_held & ~b_held).sum()), int((b_held & ~a_held).sum())
    n, tail, term = only_a + only_b, 1, 1
    for k in range(min(only_a, only_b)):  # whole numbers: exact at any n, 10 ms at ten thousand
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def holm(ps: Sequence[float]) -> list[float]:
    """The p values after the correction of Holm (1979) for testing all of them at once."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, floor = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = floor
    return adjusted


def check_same_samples(a: Records, b: Records) -> None:
    """Refuse to compare two models that were not measured on the same samples with the same labels."""
    for name, what in (("index", "samples"), ("y", "labels")):
        if not np.array_equal(a.columns[name], b.columns[name]):
            raise ValueError(
                f"two models of {len(a)} and {len(b)} records were not measured on the same {what}, so they cannot be "
                "compared; evaluate both on the same data in the same order"
            )


def worst(records: Records, norm: str, eps: float) -> Share:
    """The share that holds against every attack at once: the worst case per sample, never a mean over attacks."""
    return Share.of(records.held(eps, norm))


def against(records: Records, attack: str, eps: float) -> Share:
    """The share that holds against one attack alone, within ``eps``."""
    return Share.of(records.right & ~records.beaten(attack, eps))


@dataclass(frozen=True)
class Comparison:
    """Two models of one seed on the same samples: how many only one of them holds, and the exact paired test."""

    first: str
    second: str
    seed: int
    only_first: int
    only_second: int
    p: float
    adjusted: float

    @property
    def lead(self) -> int:
        """1 where the first holds significantly more, -1 where the second does, else 0."""
        if self.adjusted >= SIGNIFICANT:
            return 0
        return 1 if self.only_first > self.only_second else -1


def compare(study: Study) -> list[Comparison]:
    """Every pair of names at every seed they share, worst case at the stated eps, corrected for their number."""
    found = []
    for a_runs, b_runs in combinations(study.by_name().values(), 2):
        partners = {run.seed: run for run in b_runs}
        found += [_paired(study, run, partners[run.seed]) for run in a_runs if run.seed in partners]
    corrected = holm([pair.p for pair in found])
    return [replace(pair, adjusted=p) for pair, p in zip(found, corrected, strict=True)]


def _paired(study: Study, a: Run, b: Run) -> Comparison:
    check_same_samples(a.records, b.records)
    a_held, b_held = (run.records.held(study.eps, study.norm) for run in (a, b))
    only_a, only_b = int((a_held & ~b_held).sum()), int((b_held & ~a_held).sum())
    p = mcnemar(a_held, b_held)
    return Comparison(a.name, b.name, a.seed, only_a, only_b, p, p)


@dataclass(frozen=True)
class Point:
    """A point of accuracy against eps: measured there, or else an upper bound."""

    eps: float
    share: Share
    measured: bool


def curve_grid(records: Sequence[Records], norm: str) -> list[float]:
    """Where to look at accuracy against eps: zero, every eps that was attacked, and an even grid up to the largest."""
    attacks = [(r, name, a) for r in records for name, a in r.attacks.items() if a.norm == norm]
    run_at = {a.eps for _, _, a in attacks if math.isfinite(a.eps)}
    reached = {_farthest(r, name) for r, name, a in attacks if math.isinf(a.eps)}
    top = max(run_at | reached, default=0.0)
    return sorted({0.0, *run_at, *np.linspace(0, top, _GRID).tolist()})


def _farthest(records: Records, name: str) -> float:
    distance = records.columns[f"distance:{records.attacks[name].norm}:{name}"]
    fooled = distance[records.beaten(name, math.inf) & np.isfinite(distance)]
    return float(fooled.max(initial=0.0))


def curve(records: Records, norm: str, grid: Sequence[float] | None = None) -> list[Point]:
    """The share that holds at each eps of ``grid``, by default the grid of these records alone."""
    where = curve_grid([records], norm) if grid is None else grid
    return [Point(eps, worst(records, norm, eps), records.measured(eps, norm)) for eps in where]
