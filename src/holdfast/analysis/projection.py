"""A map of features in the plane: adversarial samples placed on the map of natural ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array, features_of, same_width, unit_rows
from holdfast.statistics import Share

_NEAR = 10
_ROUNDING = 1e-6  # of directions in float32


@dataclass(frozen=True, eq=False, repr=False)
class Projection:
    """Positions on the map: of the natural samples (n, 2), and of the samples placed on it (m, 2).

    ``faithful`` is the share of natural samples whose nearest neighbor in feature space is among their ten nearest
    neighbors on the map: a map with a low share shows little of the features.
    """

    natural: Array
    placed: Array
    faithful: Share
    seed: int

    def __repr__(self) -> str:
        return (
            f"map of {len(self.natural)} samples, {len(self.placed)} placed on it (seed {self.seed}); "
            f"{100 * self.faithful.value:.1f} % keep their nearest neighbor"
        )


def projection(
    natural: ArrayLike,
    placed: ArrayLike,
    *,
    perplexity: float = 15.0,
    iterations: int = 500,
    seed: int = 0,
) -> Projection:
    """t-SNE of natural features, with other features, such as adversarial ones, placed on the finished map.

    The metric is the cosine distance, as in Figures 1, 2 and 6 to 11 of the TLA paper (Mao et al. 2019), where all
    samples share one t-SNE; placing adversarial samples afterwards keeps them from changing the map. Equal inputs and
    seeds give equal maps. It is that of openTSNE (Poličar et al. 2024).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> natural = np.concatenate([rng.normal([9, 0, 0], 1, (30, 3)), rng.normal([0, 9, 0], 1, (30, 3))])
    >>> found = projection(natural, natural[:2], perplexity=5, iterations=50)
    >>> found.natural.shape, found.placed.shape
    ((60, 2), (2, 2))
    """
    points, others = features_of(natural, "natural features"), features_of(placed, "features to place")
    same_width(points, others, "natural and placed features")
    if not 1 <= perplexity <= (len(points) - 1) / 3:
        raise ValueError(
            f"perplexity is {perplexity:g} but {len(points)} natural samples allow 1 to {(len(points) - 1) / 3:.3g}; "
            "give more samples or a lower perplexity"
        )
    units = unit_rows(points)
    if np.ptp(units, axis=0).max() < _ROUNDING:
        raise ValueError(
            "the natural features all have one direction, so there is no map of them; take features from another layer"
        )
    from openTSNE import TSNE  # here, because importing it takes long

    tsne = TSNE(
        perplexity=perplexity,
        n_iter=iterations,
        metric="cosine",
        neighbors="exact",
        random_state=seed,
        n_jobs=1,  # sums in one order, so that equal seeds give equal bits
    )
    chart = tsne.fit(units)
    near = min(5.0, (len(points) - 1) / 3)
    on_map = np.asarray(chart.transform(unit_rows(others), perplexity=near)) if len(others) else np.zeros((0, 2))
    return Projection(np.asarray(chart), on_map, _faithful(units, np.asarray(chart)), seed)


def _faithful(features: Array, chart: Array) -> Share:
    from sklearn.neighbors import NearestNeighbors

    nearest = NearestNeighbors(n_neighbors=1).fit(features).kneighbors(return_distance=False)
    near = NearestNeighbors(n_neighbors=min(_NEAR, len(chart) - 1)).fit(chart).kneighbors(return_distance=False)
    return Share.of((near == nearest).any(1))
