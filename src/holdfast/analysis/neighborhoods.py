"""Which training samples are nearest to a natural or adversarial sample in feature space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array, features_of, labels_of, same_width, unit_rows
from holdfast.neighbors import neighbors, vote
from holdfast.statistics import Share


@dataclass(frozen=True, eq=False, repr=False)
class Neighborhoods:
    """The accuracy of K-nearest-neighbor classification, and the nearest gallery samples of each query.

    ``k`` and ``accuracy`` have one entry for each number of neighbors. ``nearest`` (n, shown) holds positions in the
    gallery, nearest first, and ``votes`` (n, k) the class that each number of neighbors votes for.
    """

    k: tuple[int, ...]
    accuracy: tuple[Share, ...]
    nearest: Array
    votes: Array

    @staticmethod
    def of(k: Sequence[int], votes: Array, nearest: Array, y: Array) -> "Neighborhoods":
        """The neighborhoods of samples of classes ``y``, from neighbors that were found before."""
        return Neighborhoods(tuple(k), tuple(Share.of(vote == y) for vote in votes.T), nearest, votes)

    def at(self, k: int) -> Share:
        """The accuracy with ``k`` neighbors."""
        return self.accuracy[self.k.index(k)]

    def __repr__(self) -> str:
        parts = [f"{100 * a.value:.1f} % with K = {k}" for k, a in zip(self.k, self.accuracy, strict=True)]
        return f"nearest neighbors: {', '.join(parts)} of {len(self.votes)} samples"


def neighborhoods(
    queries: ArrayLike,
    y: ArrayLike,
    gallery: ArrayLike,
    gallery_y: ArrayLike,
    *,
    k: Sequence[int] = (50,),
    distance: Literal["cosine", "euclidean"] = "cosine",
    shown: int = 10,
) -> Neighborhoods:
    """K-nearest-neighbor accuracy of queries against a gallery of training samples (Mao et al. 2019, Table 4).

    ``queries`` (n, d) are features of natural or adversarial samples whose true classes are ``y``. Ties of votes go to
    the smaller class. The paper does not say which distance it uses; ``cosine`` is the one of its training loss.

    >>> gallery, classes = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], [0, 0, 1, 1]
    >>> found = neighborhoods([[0.8, 0.1], [0.7, 0.2], [0.3, 0.4]], [0, 0, 0], gallery, classes, k=[1, 3])
    >>> found
    nearest neighbors: 66.7 % with K = 1, 66.7 % with K = 3 of 3 samples
    >>> found.nearest[0]
    array([1, 0, 3, 2])
    """
    points, targets = features_of(queries, "queries"), features_of(gallery, "gallery features")
    same_width(points, targets, "queries and gallery")
    y, classes = labels_of(y, len(points), "labels"), labels_of(gallery_y, len(targets), "gallery labels")
    if not k or min(k) < 1 or max(k) > len(targets):
        raise ValueError(f"k is {list(k)} but the gallery has {len(targets)} samples; give numbers from 1 to that")
    if distance == "cosine":
        points, targets = unit_rows(points), unit_rows(targets)
    many = min(max(*k, shown), len(targets))
    _, found = neighbors(torch.tensor(points), torch.tensor(targets), many)
    votes = [vote(torch.tensor(classes)[found[:, :count]].long()).numpy() for count in k]
    return Neighborhoods.of(k, np.stack(votes, 1), found[:, :shown].numpy(), y)
