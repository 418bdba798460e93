"""How far, and toward which class, features move as an attack proceeds."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array, features_of, labels_of, unit_rows
from holdfast.statistics import Estimate, Share


@dataclass(frozen=True, eq=False, repr=False)
class Drift:
    """Cosine distances of features step by step; entry t of each field belongs to step t, entry 0 to the clean sample.

    ``moved`` is the distance from the clean features, ``true`` that to the mean of the true class and ``false`` that to
    the nearest mean of another class, each averaged over the samples. ``home`` is the share of samples whose nearest
    class mean is that of their true class. ``nearest`` (steps + 1, n) is the class whose mean is nearest to each sample
    and ``y`` (n,) its true class.
    """

    moved: tuple[Estimate, ...]
    true: tuple[Estimate, ...]
    false: tuple[Estimate, ...]
    home: tuple[Share, ...]
    nearest: Array
    y: Array

    @property
    def crossing(self) -> int | None:
        """The first step after which samples are on average nearer to a false class than to their own; None: never."""
        pairs = zip(self.true, self.false, strict=True)
        return next((t for t, (true, false) in enumerate(pairs) if true.value > false.value), None)

    def toward(self) -> dict[int, dict[int, int]]:
        """For each true class the classes whose means its samples end nearest to, with their numbers, most first."""
        return {int(k): dict(Counter(self.nearest[-1][self.y == k].tolist()).most_common()) for k in np.unique(self.y)}

    def __repr__(self) -> str:
        last = f"{self.moved[-1]} from the clean features after {len(self.moved) - 1} steps"
        return f"drift {last}; {100 * self.home[-1].value:.1f} % nearest to the true class"


def drift(path: ArrayLike, y: ArrayLike, means: ArrayLike) -> Drift:
    """The movement of features along an attack, relative to the means of the classes (Mao et al. 2019, Figure 1).

    ``path`` (steps + 1, n, d) are the features of n samples of classes ``y``, first clean and then after each step.
    ``means`` (classes, d) are the mean features of the classes, such as
    :func:`holdfast.losses.latent.class_means` of training samples.

    >>> path = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]
    >>> found = drift(path, [0, 1], [[1.0, 0.0], [0.0, 1.0]])
    >>> [round(step.value, 2) for step in found.true]
    [0.0, 0.15, 0.5]
    >>> found.home[-1].value, found.toward()
    (0.5, {0: {1: 1}, 1: {1: 1}})
    """
    steps = np.asarray(path)
    if steps.ndim != 3 or not len(steps):
        raise ValueError(
            f"path has shape {steps.shape} but features of shape (steps + 1, samples, dimensions) are needed"
        )
    features = features_of(steps.reshape(-1, steps.shape[2]), "features along the attack")
    centers = unit_rows(features_of(means, "class means"))
    if centers.shape[1] != features.shape[1] or len(centers) < 2:
        raise ValueError(
            f"means have shape {centers.shape} but ({features.shape[1]} dimensions) for each of at least two classes "
            "are needed; compute them from the same layer"
        )
    y = labels_of(y, steps.shape[1], "labels")
    if len(y) and not 0 <= y.min() <= y.max() < len(centers):
        raise ValueError(f"labels span {y.min()}..{y.max()} but there are means of {len(centers)} classes")
    unit = unit_rows(features).reshape(steps.shape)
    toward = 1 - unit @ centers.T
    true = np.take_along_axis(toward, np.broadcast_to(y[:, None], (*steps.shape[:2], 1)), 2)[..., 0]
    false = np.where(np.arange(len(centers)) == y[:, None], np.inf, toward).min(2)
    home = true <= false
    other = np.where(np.arange(len(centers)) == y[:, None], np.inf, toward).argmin(2)
    return Drift(
        moved=_each(1 - (unit * unit[0]).sum(2)),
        true=_each(true),
        false=_each(false),
        home=tuple(Share.of(step) for step in home),
        nearest=np.where(home, y, other),
        y=y,
    )


def _each(values: Array) -> tuple[Estimate, ...]:
    return tuple(Estimate.mean(step) for step in values)
