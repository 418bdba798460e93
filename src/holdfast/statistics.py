"""Numbers with their uncertainty: shares with Wilson intervals, spread over seeds, paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

_Z = 1.959963984540054  # the normal quantile at 0.975


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
