"""How far adversarial examples are from the natural samples of the false and of the true class."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array, features_of, labels_of, same_width, unit_rows
from holdfast.statistics import Estimate, resampled

_ENTRIES = 1 << 22  # distances computed at once
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Ratio:
    """The mean distance between adversarial and natural samples over that among natural ones, for each class.

    ``each`` (classes,) holds the ratios, nan for a class that ``counts`` says has no adversarial example; ``draws``
    (draws, classes) the same in bootstrap draws of the samples. Ratios of two models on the same samples have paired
    draws.
    """

    classes: Array
    each: Array
    counts: Array
    draws: Array

    @property
    def known(self) -> list[int]:
        """The classes that have a ratio."""
        return [int(k) for k in self.classes[np.isfinite(self.each)]]

    @property
    def skipped(self) -> int:
        """The number of classes without an adversarial example, which have no ratio."""
        return len(self.classes) - len(self.known)

    @cached_property
    def average(self) -> Estimate:
        """The mean over all classes that have a ratio; nan if none has."""
        return self.over(self.known)

    def over(self, classes: Iterable[int]) -> Estimate:
        """The mean over some classes that have a ratio, such as those that several models have in common."""
        chosen = self._columns(classes)
        if not chosen.any():
            return Estimate(np.nan, np.nan, np.nan, 0)
        return Estimate.of(self.each[chosen].mean(), _mean(self.draws[:, chosen]), int(self.counts[chosen].sum()))

    def minus(self, other: "Ratio") -> Estimate:
        """The difference of two models measured on the same samples, on the classes that both have."""
        common = sorted({*self.known} & {*other.known})
        if not common or self.draws.shape[0] != other.draws.shape[0]:
            return Estimate(np.nan, np.nan, np.nan, 0)
        mine, theirs = self._columns(common), other._columns(common)
        draws = _mean(self.draws[:, mine]) - _mean(other.draws[:, theirs])
        value = self.each[mine].mean() - other.each[theirs].mean()
        return Estimate.of(value, draws, int(min(self.counts[mine].sum(), other.counts[theirs].sum())))

    def _columns(self, classes: Iterable[int]) -> Array:
        return np.isin(self.classes, list(classes))

    def __repr__(self) -> str:
        return f"{self.average} over {len(self.known)} of {len(self.classes)} classes"


@dataclass(frozen=True, eq=False, repr=False)
class Separation:
    """The ratios r (to the false class, Table 2 of the TLA paper) and r' (to the true class, Table 3).

    ``within`` is the mean distance among the natural samples of a class, averaged over the classes: what both ratios
    divide by. Where it is small, r can be large although adversarial examples are near the false class.
    """

    r: Ratio
    r_prime: Ratio
    within: Estimate

    def __repr__(self) -> str:
        return f"r = {self.r}, r' = {self.r_prime}, distance within a class {self.within}"


def separation(
    natural: ArrayLike, y: ArrayLike, adversarial: ArrayLike, label: ArrayLike, *, seed: int = 0, draws: int = 1000
) -> Separation:
    """The ratios r and r' of Mao et al. (2019, section 5.2), with intervals from bootstrap draws of the samples.

    Row i of ``natural`` and of ``adversarial`` (n, d) are the features of sample i, of class ``y[i]``, before and
    after the attack, and ``label[i]`` is the class that the model predicts after it. The distance is D(u, v) =
    1 - |cos(u, v)|. For class k, r is the mean distance between the adversarial examples misclassified into k and the
    natural samples of k, over the mean distance among the natural samples of k; larger is better. For r' the
    adversarial examples are those made from samples of k; smaller is better. Classes without a misclassified
    example have no r and are left out of its average: compare models by :meth:`Ratio.over` the classes they share.

    >>> natural = [[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]
    >>> attacked = [[0.5, 1.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]]
    >>> separation(natural, [0, 0, 1, 1], attacked, [1, 0, 1, 1]).r.each  # nothing was misclassified into class 0
    array([        nan, 17.2...])
    """
    clean, moved = features_of(natural, "natural features"), features_of(adversarial, "adversarial features")
    same_width(clean, moved, "natural and adversarial features")
    if len(clean) != len(moved):
        raise ValueError(f"there are {len(clean)} natural and {len(moved)} adversarial features; give pairs")
    y, label = labels_of(y, len(clean), "labels"), labels_of(label, len(clean), "predicted labels")
    weights = np.concatenate([np.ones((1, len(y))), resampled(len(y), draws, seed)])  # first every sample once
    distances = _Distances(
        unit_rows(clean), unit_rows(moved), weights, signed=bool((clean < 0).any() | (moved < 0).any())
    )
    classes = np.unique(y)
    own = {int(k): y == k for k in classes}
    within = np.stack([distances.within(k, natural) for k, natural in own.items()], 1)

    def ratio(adversarial: dict[int, Array]) -> Ratio:
        between = np.stack([distances.between(adversarial[k], natural) for k, natural in own.items()], 1)
        ratios = between / within
        return Ratio(classes, ratios[0], np.array([mask.sum() for mask in adversarial.values()]), ratios[1:])

    return Separation(
        r=ratio({k: (label == k) & ~natural for k, natural in own.items()}),
        r_prime=ratio(own),
        within=Estimate.of(within[0].mean(), _mean(within[1:]), len(y)),
    )


class _Distances:
    """Mean distances between sets of natural and adversarial samples, for every row of ``weights`` (draws, n).

    Without negative features no cosine is negative, and the sum over pairs is a product of weighted sums of unit
    vectors: it costs as much as the samples, not the pairs. Otherwise cosines are computed in blocks.
    """

    def __init__(self, natural: Array, adversarial: Array, weights: Array, signed: bool) -> None:
        self.natural, self.adversarial, self.weights, self.signed = natural, adversarial, weights, signed

    def within(self, k: int, which: Array) -> Array:
        """(draws,) the mean distance among the natural samples of class k, each pair of different samples once."""
        u, w = self.natural[which], self.weights[:, which]
        if len(u) < 2:
            raise ValueError(
                f"class {k} has one sample, so it has no distance within the class; analyze more samples or leave the "
                "class out"
            )
        alike = self._similarity(u, u, w, w) - w**2 @ (u**2).sum(1)
        distance = 1 - _divided(alike, w.sum(1) ** 2 - (w**2).sum(1))
        if not distance[0] > _ROUNDING:
            raise ValueError(
                f"the natural features of class {k} all have one direction, so distances to them cannot be compared; "
                "take features from another layer"
            )
        return distance

    def between(self, which: Array, natural: Array) -> Array:
        """(draws,) the mean distance between adversarial and natural samples, nan without adversarial ones."""
        v, w, own = self.weights[:, which], self.weights[:, natural], which & natural
        alike = self._similarity(self.adversarial[which], self.natural[natural], v, w)
        if not own.any():
            return 1 - _divided(alike, v.sum(1) * w.sum(1))
        # a sample drawn twice makes four pairs with itself; its share among all pairs must not grow with that
        drawn, each = self.weights[:, own], np.abs((self.adversarial[own] * self.natural[own]).sum(1))
        others = _divided(alike - drawn**2 @ each, v.sum(1) * w.sum(1) - (drawn**2).sum(1))
        share = own.sum() / (which.sum() * natural.sum())
        return np.asarray(1 - share * _divided(drawn @ each, drawn.sum(1)) - (1 - share) * others)

    def _similarity(self, v: Array, u: Array, v_weights: Array, u_weights: Array) -> Array:
        """(draws,) the weighted sum of |cos| over all pairs."""
        if not self.signed:
            return np.asarray(np.einsum("bd,bd->b", v_weights @ v, u_weights @ u))
        total = np.zeros(len(v_weights))
        for part in np.array_split(np.arange(len(v)), -(-v.shape[0] * u.shape[0] // _ENTRIES) or 1):
            total += np.einsum("bi,ib->b", v_weights[:, part], np.abs(v[part] @ u.T) @ u_weights.T)
        return total


def _divided(total: Array, count: Array) -> Array:
    return np.asarray(np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0))


def _mean(draws: Array) -> Array:
    """(draws,) the mean over the classes that a draw has; nan where it has none."""
    known = np.isfinite(draws)
    return _divided(np.where(known, draws, 0.0).sum(1), known.sum(1))
