"""Accuracy against the strength of an attack."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import labels_of
from holdfast.statistics import Share


@dataclass(frozen=True, eq=False, repr=False)
class Strength:
    """The share of samples that are still classified correctly at each strength, of all samples and of each class."""

    at: tuple[float, ...]
    accuracy: tuple[Share, ...]
    per_class: dict[int, tuple[Share, ...]]

    @property
    def weakest(self) -> int:
        """The class with the lowest accuracy at the largest strength."""
        return min(self.per_class, key=lambda k: self.per_class[k][-1].value)

    def __repr__(self) -> str:
        last = self.accuracy[-1]
        return f"{100 * last.value:.1f} % of {last.n} samples hold at {self.at[-1]:g}, fewest of class {self.weakest}"


def strength(fooled_at: ArrayLike, y: ArrayLike, at: Sequence[float]) -> Strength:
    """Accuracy against steps, restarts or eps, of all samples and per class, with Wilson intervals.

    ``fooled_at`` (n,) is the smallest strength that fooled each sample: the step or restart at which it was first
    misclassified, or the distance of its adversarial example. It is inf for samples that were never fooled and at most
    the smallest of ``at`` for those misclassified without an attack.

    >>> found = strength([0, 3, 10, float("inf")], [0, 0, 1, 1], at=[0, 5, 20])
    >>> [share.value for share in found.accuracy], found.weakest
    ([0.75, 0.5, 0.25], 0)
    """
    amounts, levels = np.asarray(fooled_at, dtype=np.float64), [float(level) for level in at]
    if amounts.ndim != 1 or np.isnan(amounts).any():
        raise ValueError(f"fooled_at has shape {amounts.shape} but one number per sample is needed, inf where it held")
    if not levels or levels != sorted(set(levels)):
        raise ValueError(f"at is {levels} but increasing strengths are needed")
    y = labels_of(y, len(amounts), "labels")
    held = amounts > np.array(levels)[:, None]
    return Strength(
        at=tuple(levels),
        accuracy=tuple(Share.of(row) for row in held),
        per_class={int(k): tuple(Share.of(row[y == k]) for row in held) for k in np.unique(y)},
    )
