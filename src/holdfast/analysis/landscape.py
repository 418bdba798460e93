"""The loss around samples along two directions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array
from holdfast.statistics import Estimate


@dataclass(frozen=True, eq=False, repr=False)
class Landscape:
    """The mean loss over a grid, and numbers that say how smooth it is.

    ``mean`` (a, b) is the loss at each point of the grid. ``curvature`` is the mean absolute second difference of the
    loss between neighboring points over the squared spacing, 0 for a plane; ``rise`` is the largest loss on the grid
    minus the loss at its center. Both are averaged over the samples.
    """

    at: Array
    mean: Array
    curvature: Estimate
    rise: Estimate

    def __repr__(self) -> str:
        return f"landscape of {self.rise.n} samples: curvature {self.curvature}, rise {self.rise}"


def landscape(losses: ArrayLike, at: ArrayLike) -> Landscape:
    """Smoothness of the loss over two directions (Mao et al. 2019, Figure 13).

    ``losses`` (n, g, g) are the losses of n samples at x + at[i]·u + at[j]·v. Compare models on the same samples
    and directions u and v. ``at`` (g,) is evenly spaced and symmetric, at least three coefficients.

    >>> at = [-0.1, 0.0, 0.1]
    >>> bowl = [[[a * a + b * b for b in at] for a in at]]
    >>> found = landscape(bowl, at)
    >>> round(found.curvature.value, 6), round(found.rise.value, 6)
    (2.0, 0.02)
    """
    values, grid = np.asarray(losses, dtype=np.float64), np.asarray(at, dtype=np.float64)
    if grid.ndim != 1 or len(grid) < 3 or not len(grid) % 2 or not np.allclose(np.diff(grid, 2), 0, atol=1e-9):
        raise ValueError(f"at is {grid} but an odd number of at least three evenly spaced coefficients is needed")
    if values.ndim != 3 or values.shape[1:] != (len(grid), len(grid)) or not len(values):
        raise ValueError(
            f"losses have shape {values.shape} but (samples, {len(grid)}, {len(grid)}) is needed, one loss for each "
            "sample and point of the grid"
        )
    if not np.isfinite(values).all():
        raise ValueError("losses hold NaN or infinite values; check the model for overflow")
    spacing = (grid[1] - grid[0]) ** 2
    bends = [np.abs(np.diff(values, 2, axis=axis)).mean((1, 2)) / spacing for axis in (1, 2)]
    center = values[:, len(grid) // 2, len(grid) // 2]
    return Landscape(
        at=grid,
        mean=values.mean(0),
        curvature=Estimate.mean((bends[0] + bends[1]) / 2),
        rise=Estimate.mean(values.max((1, 2)) - center),
    )
