"""Uncertainty of measured numbers: Wilson and bootstrap intervals, spread over seeds, paired tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Mask = NDArray[np.bool_]

_Z = 1.959963984540054  # the normal quantile at 0.975
_KEPT = 1 << 22  # counts of bootstrap draws that are kept: 32 MiB


@dataclass(frozen=True)
class Share:
    """The proportion of ``successes`` among ``n`` samples, with its 95 % score interval (Wilson 1927)."""

    successes: int
    n: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.n:
            raise ValueError(f"{self.successes} of {self.n} is not a share; give 0 <= successes <= n")

    @staticmethod
    def of(mask: Mask) -> "Share":
        """The share of samples for which ``mask`` is true."""
        return Share(int(mask.sum()), len(mask))

    @property
    def value(self) -> float:
        """The proportion, nan if there are no samples."""
        return self.successes / self.n if self.n else math.nan

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}], n = {self.n}"

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self._center() - self._half_width() if self.successes else 0.0

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self._center() + self._half_width() if self.successes < self.n else 1.0

    def _center(self) -> float:
        return (self.successes + _Z**2 / 2) / (self.n + _Z**2)

    def _half_width(self) -> float:
        misses = self.n - self.successes
        return _Z / (self.n + _Z**2) * math.sqrt(self.successes * misses / self.n + _Z**2 / 4)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> float:
    """The one-sided upper confidence bound of a probability after ``successes`` in n trials (Clopper, Pearson 1934).

    It also holds for draws without replacement, where it is larger than needed.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a share; give 0 <= successes <= n")
    return 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, level))


@dataclass(frozen=True)
class Estimate:
    """A number computed from ``n`` samples, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(value: float, draws: NDArray[Any], n: int) -> "Estimate":
        """The number with the percentile interval of its bootstrap draws (Efron 1979); draws that are nan are left out.

        Without a finite draw the interval is unknown, and its ends are nan.
        """
        known = draws[np.isfinite(draws)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
        return Estimate(float(value), float(low), float(high), n)

    @staticmethod
    def mean(values: NDArray[Any], seed: int = 0, draws: int = 1000) -> "Estimate":
        """The mean of one value per sample, with its bootstrap interval; nan if there are no values."""
        if not len(values):
            return Estimate(math.nan, math.nan, math.nan, 0)
        counts = resampled(len(values), draws, seed)
        return Estimate.of(values.mean(), counts @ values.astype(np.float64) / len(values), len(values))

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def resampled(n: int, draws: int, seed: int) -> NDArray[np.float64]:
    """(draws, n) how often a bootstrap draw of n samples with replacement takes each; equal for equal arguments.

    Two numbers computed from the same counts are paired: the draws of their difference give its interval.
    """
    return _kept(n, draws, seed) if n * draws <= _KEPT else _resampled(n, draws, seed)


@lru_cache(maxsize=4)
def _kept(n: int, draws: int, seed: int) -> NDArray[np.float64]:
    # a report computes hundreds of intervals from the same draws
    counts = _resampled(n, draws, seed)
    counts.setflags(write=False)
    return counts


def _resampled(n: int, draws: int, seed: int) -> NDArray[np.float64]:
    rng, counts = np.random.default_rng(seed), np.empty((draws, n))
    size = max(1, _KEPT // (8 * max(n, 1)))
    for start in range(0, draws, size):
        many = min(size, draws - start)
        drawn = rng.integers(n, size=(many, n)) + n * np.arange(many)[:, None]
        counts[start : start + many] = np.bincount(drawn.ravel(), minlength=many * n).reshape(many, n)
    return counts


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over ``n`` seeds; the deviation is None for one seed."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of one number per seed."""
    if not values:
        raise ValueError("there are no values to average; give one per seed")
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mcnemar(a: Mask, b: Mask) -> float:
    """The exact two-sided p value of McNemar's paired test (1947) that two models are right equally often.

    ``a`` and ``b`` say for each sample whether the model was right, in the same order of samples.
    """
    if a.shape != b.shape:
        raise ValueError(f"paired samples have shapes {a.shape} and {b.shape}; give one value per sample")
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n, tail, term = only_a + only_b, 1, 1
    for k in range(min(only_a, only_b)):  # in integers: exact at any n, 10 ms at ten thousand
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def holm(ps: Sequence[float]) -> list[float]:
    """The p values adjusted for multiple tests by the step-down procedure of Holm (1979)."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, floor = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = floor
    return adjusted
