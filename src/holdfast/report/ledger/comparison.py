"""Two methods compared by one measure, over samples and seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import NormalDist, fmean, variance
from typing import Literal

import numpy as np
from scipy.stats import t as student

from holdfast.records.records import Array, Mask, Records
from holdfast.report.ledger.claims import LEVEL
from holdfast.statistics import Estimate, mcnemar

_Z, _POWER = NormalDist().inv_cdf(1 - LEVEL / 2), 0.8
_MOST = 1000  # seeds that a run is ever asked for
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

    ``freedom`` is the degrees of freedom of the error; it is small where a few seeds tell how much trainings differ.
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
    freedom: float = math.inf
    ps: tuple[float, ...] = ()

    @property
    def lead(self) -> float:
        return fmean(self.each)

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.lead - _quantile(1 - LEVEL / 2, self.freedom) * self.error

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.lead + _quantile(1 - LEVEL / 2, self.freedom) * self.error

    @property
    def visible(self) -> float:
        """The smallest lead that a test with these samples and seeds finds in four of five cases."""
        return _visible(self.error, self.freedom)

    def standing(self, least: float, needed: int, tests: int) -> Standing:
        """Whether the lead is shown, is shown to be less than the least that counts, or neither.

        All comparisons of a claim must hold, so that each is tested at the level; any that fails refutes the claim, so
        the level is divided by their number, ``tests``.
        """
        if len(self.seeds) < needed or not math.isfinite(self.error):
            return "open"
        if self.lead + _quantile(1 - LEVEL / (2 * tests), self.freedom) * self.error < least:
            return "fails"
        return "holds" if self.low > 0 and min(self.each) > 0 else "open"

    def seeds_for(self, lead: float) -> int:
        """How many seeds a test needs to find this lead in four of five cases, if errors shrink with their number."""
        if lead <= 0:
            return 0
        have = len(self.seeds)
        for seeds in range(2, _MOST):
            freedom = self.freedom * (seeds - 1) / (have - 1) if have > 1 else math.inf
            if _visible(self.error * math.sqrt(have / seeds), freedom) <= lead:
                return seeds
        return _MOST


def visible(samples: int, seeds: int, differ: float) -> float:
    """The lead in percentage points that a test finds in four of five cases, before a run.

    ``differ`` is the share of samples that only one of two models classifies correctly, in other samples at each seed.
    """
    return 100 * _visible(math.sqrt(differ / (samples * seeds)), math.inf)


def _quantile(share: float, freedom: float) -> float:
    return float(student.ppf(share, freedom))


def _visible(error: float, freedom: float) -> float:
    return (_quantile(1 - LEVEL / 2, freedom) + _quantile(_POWER, freedom)) * error


def compare(
    first: Sequence[Evidence],
    second: Sequence[Evidence],
    measure: str,
    scale: float,
    names: tuple[str, str],
    others: Sequence[Sequence[Evidence]] = (),
) -> Comparison | None:
    """Compare models of two methods at the seeds that both have; None if none was measured.

    ``scale`` is 100 or 1, negative if lower is better; ``names`` are those of the methods. ``others`` are the models of
    further methods, whose spread over seeds is taken to be the same: two seeds of two methods say little of it.
    """
    spread = _spread([first, second, *others], measure, scale)
    seconds = {one.seed: one for one in second}
    pairs = [(a, seconds[a.seed]) for a in first if a.seed in seconds]
    read = [(a, b, a.reading(measure), b.reading(measure)) for a, b in pairs]
    masks = [(a, b, x, y) for a, b, x, y in read if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)]
    if masks:
        return _paired(masks, measure, scale, names, spread)
    numbers = [(a, x, y) for a, _, x, y in read if isinstance(x, Estimate) and isinstance(y, Estimate)]
    known = [(a, x, y) for a, x, y in numbers if math.isfinite(x.value) and math.isfinite(y.value)]
    return _estimated(known, measure, scale, names, spread) if known else None


@dataclass(frozen=True)
class _Spread:
    """The variance over seeds of what one training gives, pooled over methods, and its degrees of freedom."""

    variance: float
    freedom: int

    def error(self, over_samples: float, seeds: int, both: float = 0.0) -> tuple[float, float]:
        """The standard error of a lead over samples and seeds, and its degrees of freedom by Welch and Satterthwaite.

        A lead is the difference of two means over seeds. One seed alone says nothing of the spread. ``both`` is the
        variance that is in the spread and in the error over samples.
        """
        part = max(0.0, 2 * self.variance / seeds - both) if seeds > 1 else 0.0
        total = over_samples**2 + part
        return math.sqrt(total), self.freedom * (total / part) ** 2 if part else math.inf


def _spread(runs: Sequence[Sequence[Evidence]], measure: str, scale: float) -> _Spread:
    """The spread over seeds of a measure, pooled over methods."""
    values = [[value for one in models if (value := _value(one, measure)) is not None] for models in runs]
    several = [(len(each) - 1, variance(each)) for each in values if len(each) > 1]
    freedom = sum(count for count, _ in several)
    pooled = sum(count * each for count, each in several) / freedom if freedom else 0.0
    return _Spread(scale**2 * pooled, freedom)


def _value(one: Evidence, measure: str) -> float | None:
    """The number that a model has by a measure: the share of samples it gets right, or that of the analysis."""
    read = one.reading(measure)
    if read is None:
        return None
    value = read.value if isinstance(read, Estimate) else float(read.mean())
    return value if math.isfinite(value) else None


def _paired(
    read: Sequence[tuple[Evidence, Evidence, Mask, Mask]],
    measure: str,
    scale: float,
    names: tuple[str, str],
    spread: _Spread,
) -> Comparison:
    """Compare samples that all models have, paired: the error over samples is that of their means over seeds."""
    common = reduce(np.intersect1d, (one.records.columns["index"] for a, b, *_ in read for one in (a, b)))
    if not len(common):
        raise ValueError(f"{names[0]} and {names[1]} were not measured on the same samples, so they cannot be compared")
    rows = [(_at(a, x, common), _at(b, y, common)) for a, b, x, y in read]
    gains = np.stack([x.astype(float) - y for x, y in rows])
    over_samples = gains.mean(0).std(ddof=1) / math.sqrt(len(common)) if len(common) > 1 else math.nan
    each = tuple(scale * gain for gain in gains.mean(1).tolist())
    # what is random in each sample at each seed also makes the means over samples differ from seed to seed
    both = float(gains.var(0, ddof=1).mean()) / gains.size if len(each) > 1 else 0.0
    error, freedom = spread.error(abs(scale) * float(over_samples), len(each), scale**2 * both)
    return Comparison(
        first=names[0],
        second=names[1],
        measure=measure,
        seeds=tuple(a.seed for a, *_ in read),
        n=len(common),
        each=each,
        error=error,
        freedom=freedom,
        values=(abs(scale) * fmean(x.mean() for x, _ in rows), abs(scale) * fmean(y.mean() for _, y in rows)),
        ps=tuple(mcnemar(x, y) for x, y in rows),
    )


def _at(one: Evidence, mask: Mask, index: Array) -> Mask:
    columns = one.records.columns["index"]
    order = np.argsort(columns)
    return np.asarray(mask[order[np.searchsorted(columns[order], index)]])


def _estimated(
    read: Sequence[tuple[Evidence, Estimate, Estimate]],
    measure: str,
    scale: float,
    names: tuple[str, str],
    spread: _Spread,
) -> Comparison:
    """Compare numbers with intervals, as if their errors were independent: those of seeds share their samples."""
    each = tuple(scale * (x.value - y.value) for _, x, y in read)
    errors = [math.hypot(*((one.high - one.low) / (2 * _Z) for one in (x, y))) for _, x, y in read]
    error, freedom = spread.error(abs(scale) * fmean(errors), len(each))
    return Comparison(
        first=names[0],
        second=names[1],
        measure=measure,
        seeds=tuple(a.seed for a, *_ in read),
        n=min(one.n for _, x, y in read for one in (x, y)),
        each=each,
        error=error,
        freedom=freedom,
        values=(abs(scale) * fmean(x.value for _, x, _ in read), abs(scale) * fmean(y.value for *_, y in read)),
    )
