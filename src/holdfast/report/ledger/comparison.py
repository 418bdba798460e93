"""Two methods compared by one measure, over samples and seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy as np

from holdfast.records.records import Array, Mask, Records
from holdfast.report.ledger.claims import LEVEL
from holdfast.statistics import Estimate, mcnemar

_Z, _POWER = NormalDist().inv_cdf(1 - LEVEL / 2), NormalDist().inv_cdf(0.8)
Standing = Literal["holds", "fails", "open"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The records of one model: the recipe, method and seed that made it, and its analysis as numbers by name.

    ``complete`` says whether all attacks of the recipe were run that count for the worst case.
    """

    recipe: str
    method: str
    seed: int
    records: Records
    complete: bool = True
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def reading(self, measure: str) -> Mask | Estimate | None:
        """Which samples the model gets right by a measure, or the number that an analysis found; None if neither is
        known.

        Measures are "clean", "worst case", the name of an attack, or of a number of the analysis.
        """
        records = self.records
        if measure == "clean":
            return records.correct
        if measure == "worst case":
            threat = records.facts["recipe"]["threat"]
            return records.held(float(threat["eps"]), threat["norm"]) if self.complete else None
        if measure in records.attacks:
            return records.correct & ~records.fooled_within(measure, records.attacks[measure].eps)
        return self.estimates.get(measure)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """By how much the first method leads the second by one measure: the mean over seeds of ``each``, in the unit of
    the claim, with its standard error.

    ``ps`` are the p values of exact McNemar tests, one for each seed, empty for numbers of an analysis. ``values`` are
    the means of both methods.
    """

    first: str
    second: str
    measure: str
    seeds: tuple[int, ...]
    n: int
    each: tuple[float, ...]
    error: float
    values: tuple[float, float]
    ps: tuple[float, ...] = ()

    @property
    def lead(self) -> float:
        return fmean(self.each)

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.lead - _Z * self.error

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.lead + _Z * self.error

    @property
    def visible(self) -> float:
        """The smallest lead that a test with these samples and seeds finds in four of five cases."""
        return (_Z + _POWER) * self.error

    def standing(self, least: float, needed: int, tests: int) -> Standing:
        """Whether the lead is shown, is shown to be less than the least that counts, or neither.

        All comparisons of a claim must hold, so that each is tested at the level; any that fails refutes the claim, so
        the level is divided by their number, ``tests``.
        """
        if len(self.seeds) < needed or not math.isfinite(self.error):
            return "open"
        if self.lead + NormalDist().inv_cdf(1 - LEVEL / (2 * tests)) * self.error < least:
            return "fails"
        return "holds" if self.low > 0 and min(self.each) > 0 else "open"

    def seeds_for(self, lead: float) -> int:
        """How many seeds a test needs to find this lead in four of five cases, on as many samples."""
        return max(1, math.ceil(len(self.seeds) * (self.visible / lead) ** 2)) if lead > 0 else 0


def visible(samples: int, seeds: int, differ: float) -> float:
    """The lead in percentage points that a test finds in four of five cases, before a run.

    ``differ`` is the share of samples that only one of two models classifies correctly, in other samples at each seed.
    """
    return 100 * (_Z + _POWER) * math.sqrt(differ / (samples * seeds))


def compare(
    first: Sequence[Evidence], second: Sequence[Evidence], measure: str, scale: float, names: tuple[str, str]
) -> Comparison | None:
    """Compare models of two methods at the seeds that both have; None if none was measured.

    ``scale`` is 100 or 1, negative if lower is better; ``names`` are those of the methods.
    """
    others = {one.seed: one for one in second}
    pairs = [(a, others[a.seed]) for a in first if a.seed in others]
    read = [(a, b, a.reading(measure), b.reading(measure)) for a, b in pairs]
    masks = [(a, b, x, y) for a, b, x, y in read if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)]
    if masks:
        return _paired(masks, measure, scale, names)
    numbers = [(a, x, y) for a, _, x, y in read if isinstance(x, Estimate) and isinstance(y, Estimate)]
    known = [(a, x, y) for a, x, y in numbers if math.isfinite(x.value) and math.isfinite(y.value)]
    return _estimated(known, measure, scale, names) if known else None


def _paired(
    read: Sequence[tuple[Evidence, Evidence, Mask, Mask]], measure: str, scale: float, names: tuple[str, str]
) -> Comparison:
    """Compare samples that all models have: the error is that of the mean over samples of the mean over seeds."""
    common = reduce(np.intersect1d, (one.records.columns["index"] for a, b, *_ in read for one in (a, b)))
    if not len(common):
        raise ValueError(f"{names[0]} and {names[1]} were not measured on the same samples, so they cannot be compared")
    rows = [(_at(a, x, common), _at(b, y, common)) for a, b, x, y in read]
    gains = np.stack([x.astype(float) - y for x, y in rows])
    over_samples = gains.mean(0).std(ddof=1) / math.sqrt(len(common)) if len(common) > 1 else math.nan
    each = tuple(scale * gain for gain in gains.mean(1).tolist())
    return Comparison(
        first=names[0],
        second=names[1],
        measure=measure,
        seeds=tuple(a.seed for a, *_ in read),
        n=len(common),
        each=each,
        error=max(abs(scale) * float(over_samples), _over_seeds(each)),
        values=(abs(scale) * fmean(x.mean() for x, _ in rows), abs(scale) * fmean(y.mean() for _, y in rows)),
        ps=tuple(mcnemar(x, y) for x, y in rows),
    )


def _at(one: Evidence, mask: Mask, index: Array) -> Mask:
    columns = one.records.columns["index"]
    order = np.argsort(columns)
    return np.asarray(mask[order[np.searchsorted(columns[order], index)]])


def _over_seeds(each: Sequence[float]) -> float:
    """The standard error of the mean over seeds; 0 for one seed, which says nothing of it."""
    return stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0


def _estimated(
    read: Sequence[tuple[Evidence, Estimate, Estimate]], measure: str, scale: float, names: tuple[str, str]
) -> Comparison:
    """Compare numbers with intervals, as if their errors were independent: those of seeds share their samples."""
    each = tuple(scale * (x.value - y.value) for _, x, y in read)
    errors = [math.hypot(*((one.high - one.low) / (2 * _Z) for one in (x, y))) for _, x, y in read]
    return Comparison(
        first=names[0],
        second=names[1],
        measure=measure,
        seeds=tuple(a.seed for a, *_ in read),
        n=min(one.n for _, x, y in read for one in (x, y)),
        each=each,
        error=max(abs(scale) * fmean(errors), _over_seeds(each)),
        values=(abs(scale) * fmean(x.value for _, x, _ in read), abs(scale) * fmean(y.value for *_, y in read)),
    )
