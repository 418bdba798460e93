"""What the last layer of a classifier does with features: lengths, angles and shares of the gradient."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array, features_of, labels_of, same_width, unit_rows
from holdfast.statistics import Estimate


@dataclass(frozen=True, eq=False, repr=False)
class Head:
    """Lengths and angles at the last layer.

    ``lengths`` are the Euclidean lengths of features and ``angles`` the angles in degrees between features and the
    weight vector of their class, averaged over the samples; ``logits`` is the mean Euclidean norm of the logits.
    The arrays hold, for each class, the number of samples, the length of its weight vector, and the mean length and
    angle of its features (nan without samples). ``easy`` is the share of the gradient of the cross entropy that the
    half of the samples with the smallest loss holds.
    """

    lengths: Estimate
    angles: Estimate
    logits: Estimate
    easy: Estimate
    counts: Array
    class_weights: Array
    class_lengths: Array
    class_angles: Array

    def __repr__(self) -> str:
        return (
            f"features of length {self.lengths} at {self.angles} degrees from the weights of their class; "
            f"logits of norm {self.logits}; the easy half holds {100 * self.easy.value:.1f} % of the gradient"
        )


def head(features: ArrayLike, y: ArrayLike, weight: ArrayLike, logits: ArrayLike) -> Head:
    """The quantities that hypersphere embedding changes (Pang et al. 2020), for a linear layer of any classifier.

    ``features`` (n, d) enter the layer with weights ``weight`` (classes, d), which returns ``logits`` (n, classes). The
    mean norm of the logits of a plain model guides the choice of the scale s. Unequal lengths of features and weights,
    as unbalanced classes cause them, are what the normalization of HE removes.

    >>> found = head([[2.0, 0.0], [0.0, 1.0]], [0, 1], [[1.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [0.0, 1.0]])
    >>> found.class_angles
    array([ 0., 45.])
    >>> found.lengths.value
    1.5
    """
    points, weights = features_of(features, "features"), features_of(weight, "class weights")
    scores = features_of(logits, "logits")
    same_width(points, weights, "features and class weights")
    y = labels_of(y, len(points), "labels")
    if scores.shape != (len(points), len(weights)) or not len(y) or y.max() >= len(weights):
        raise ValueError(
            f"logits have shape {scores.shape} for {len(points)} features and {len(weights)} class weights; "
            "give one logit for each sample and class, and labels below the number of classes"
        )
    lengths = np.linalg.norm(points.astype(np.float64), axis=1)
    cosines = (unit_rows(points) * unit_rows(weights)[y]).sum(1)
    angles = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
    counts = np.bincount(y, minlength=len(weights))
    return Head(
        lengths=Estimate.mean(lengths),
        angles=Estimate.mean(angles),
        logits=Estimate.mean(np.linalg.norm(scores.astype(np.float64), axis=1)),
        easy=easy_share(scores, y),
        counts=counts,
        class_weights=np.linalg.norm(weights.astype(np.float64), axis=1),
        class_lengths=_per_class(lengths, y, counts),
        class_angles=_per_class(angles, y, counts),
    )


def easy_share(logits: ArrayLike, y: ArrayLike, *, draws: int = 1000, seed: int = 0) -> Estimate:
    """The share of the gradient of the cross entropy that the half of the samples with the smallest loss holds.

    The gradient of a sample is that with respect to its logits, softmax minus one-hot, measured by its Euclidean
    norm. A half would be an equal share; less says that training spends its gradient on hard samples. Call it with the
    logits of several epochs to follow training.

    >>> round(easy_share([[9.0, 0.0], [0.0, 1.0]], [0, 0]).value, 4)
    0.0002
    """
    scores = features_of(logits, "logits").astype(np.float64)
    y = labels_of(y, len(scores), "labels")
    shifted = scores - scores.max(1, keepdims=True)
    softmax = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    gradient = softmax - np.eye(scores.shape[1])[y]
    norms = np.linalg.norm(gradient, axis=1)
    order = np.argsort(softmax[np.arange(len(y)), y])[::-1]  # the smallest loss first
    sorted_norms = norms[order]
    rng = np.random.default_rng(seed)
    picks = np.sort(rng.integers(len(y), size=(draws, len(y))), axis=1)  # ascending positions: drawn samples in order
    drawn = np.array([_first_half(sorted_norms[pick]) for pick in picks])
    return Estimate.of(_first_half(sorted_norms), drawn, len(y))


def _first_half(norms: Array) -> float:
    total = norms.sum()
    return float(norms[: len(norms) // 2].sum() / total) if total > 0 else float("nan")


def _per_class(values: Array, y: Array, counts: Array) -> Array:
    sums = np.bincount(y, weights=values, minlength=len(counts))
    return np.asarray(np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0))
