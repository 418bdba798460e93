"""What records say: the share that holds under attack, comparisons of models, accuracy against eps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from holdfast.records.records import Records
from holdfast.report.study import Run, Study
from holdfast.statistics import Share, holm, mcnemar

_GRID = 21
SIGNIFICANT = 0.05


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
