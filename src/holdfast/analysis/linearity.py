"""How far the loss deviates from its linear expansion."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array
from holdfast.statistics import Estimate


@dataclass(frozen=True, eq=False, repr=False)
class Linearity:
    """Statistics of the linearity gap over the samples, for each eps (rows) and number of steps (columns).

    ``mean`` holds the mean with its interval; ``median``, ``upper`` (the 95 % quantile) and ``largest`` are arrays
    (eps, steps).
    """

    eps: tuple[float, ...]
    steps: tuple[int, ...]
    mean: tuple[tuple[Estimate, ...], ...]
    median: Array
    upper: Array
    largest: Array

    def __repr__(self) -> str:
        return f"linearity gap {self.mean[-1][-1]} at eps {self.eps[-1]:g} after {self.steps[-1]} steps"


def linearity(gaps: ArrayLike, eps: ArrayLike, steps: ArrayLike) -> Linearity:
    """The gap |l(x + d) - l(x) - d·grad l(x)| over eps and the steps of its maximization (LLR, Qin et al. 2019).

    ``gaps`` (eps, steps, n) holds the gap of each sample; see :class:`holdfast.Linearity` for the attack that finds d.
    A small gap at every eps says that the loss is nearly linear around the samples; a gap that still grows with the
    steps says that more of them are needed.

    >>> found = linearity([[[0.1, 0.3]], [[0.4, 0.8]]], eps=[0.1, 0.2], steps=[10])
    >>> [round(row[0].value, 2) for row in found.mean], float(found.largest[1, 0])
    ([0.2, 0.6], 0.8)
    """
    values, radii, counts = np.asarray(gaps, dtype=np.float64), np.atleast_1d(eps), np.atleast_1d(steps)
    if values.ndim != 3 or values.shape[:2] != (len(radii), len(counts)) or not values.shape[2]:
        raise ValueError(
            f"gaps have shape {values.shape} but ({len(radii)}, {len(counts)}, samples) is needed, one gap for each "
            "eps, number of steps and sample"
        )
    if not np.isfinite(values).all() or values.min() < 0:
        raise ValueError("gaps hold negative, NaN or infinite values; a gap is an absolute difference of finite losses")
    return Linearity(
        eps=tuple(map(float, radii)),
        steps=tuple(map(int, counts)),
        mean=tuple(tuple(Estimate.mean(cell) for cell in row) for row in values),
        median=np.median(values, 2),
        upper=np.quantile(values, 0.95, axis=2),
        largest=values.max(2),
    )
