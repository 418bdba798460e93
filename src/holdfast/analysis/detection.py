"""How well a confidence score tells misclassified samples from correctly classified ones."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from holdfast.analysis._arrays import Array
from holdfast.models.detector import Detector
from holdfast.records import snapshot
from holdfast.settings import path_of
from holdfast.statistics import Estimate, Share, resampled

RATES = (0.01, 0.05)
_KIND = "detector"


@dataclass(frozen=True, eq=False, repr=False)
class Detection:
    """The ROC curve of detecting misclassified samples by low scores, and what rejection does to accuracy.

    ``fpr`` and ``tpr`` are the points of the curve: the shares of correctly classified and of misclassified samples
    that are rejected. ``at`` holds the true positive rates at false positive rates of 1 % and 5 %. ``accepted`` and
    ``accuracy`` say how accurate the model is on the share of samples with the largest scores. ``wrong`` and ``n``
    count the misclassified and all samples, and ``draws`` holds the AUC in bootstrap draws of the images, which are
    paired for two models on the same images.
    """

    auc: Estimate
    at: dict[float, Estimate]
    fpr: Array
    tpr: Array
    accepted: Array
    accuracy: Array
    wrong: int
    n: int
    draws: Array

    def minus(self, other: "Detection") -> Estimate:
        """The difference of the AUC of two models measured on the same images."""
        if self.draws.shape != other.draws.shape or self.n != other.n:
            return Estimate(np.nan, np.nan, np.nan, 0)
        return Estimate.of(self.auc.value - other.auc.value, self.draws - other.draws, self.n)

    def __repr__(self) -> str:
        rates = ", ".join(f"{100 * e.value:.1f} % at {100 * rate:g} % FPR" for rate, e in self.at.items())
        return f"AUC {self.auc}, detects {rates}; {self.wrong} of {self.n} samples are misclassified"


def detection(
    scores: ArrayLike, wrong: ArrayLike, image: ArrayLike | None = None, *, draws: int = 1000, seed: int = 0
) -> Detection:
    """ROC, AUC and accuracy with rejection of a confidence score (Mao et al. 2019, section 5.3 and Figure 5).

    ``scores`` (m,) are confidences, such as those of :class:`holdfast.models.detector.Detector`, and ``wrong`` says
    which samples are misclassified. ``image`` tells which samples were made from the same image, such as a natural
    sample and its adversarial example: intervals are bootstrapped over images. The AUC is 0.5 for a score that knows
    nothing, and less where misclassified samples look more natural than others. It is nan if no sample, or every one,
    is misclassified.

    >>> found = detection([0.9, 0.8, 0.7, 0.3, 0.6], [False, False, True, True, False])
    >>> round(found.auc.value, 3), found.wrong
    (0.833, 2)
    """
    values, errors, images = _checked(scores, wrong, image)
    order = np.argsort(values, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(values[order]) > 0, True))  # the last of each run of equal scores
    counts = np.concatenate([np.ones((1, images.max() + 1)), resampled(int(images.max()) + 1, draws, seed)])
    curves = [_curve(weights[images[order]], errors[order], ends) for weights in counts]
    auc = np.array([_area(fpr, tpr) for fpr, tpr in curves])
    fpr, tpr = curves[0]
    at = {rate: np.array([_reached(*curve, rate) for curve in curves]) for rate in RATES}
    return Detection(
        auc=Estimate.of(auc[0], auc[1:], len(values)),
        at={rate: Estimate.of(found[0], found[1:], len(values)) for rate, found in at.items()},
        fpr=_thinned(fpr),
        tpr=_thinned(tpr),
        accepted=_thinned(np.arange(len(values), 0, -1) / len(values)),
        accuracy=_thinned(np.cumsum(~errors[order][::-1])[::-1] / np.arange(len(values), 0, -1)),
        wrong=int(errors.sum()),
        n=len(values),
        draws=auc[1:],
    )


@dataclass(frozen=True, repr=False)
class Rejection:
    """Accuracy of a classifier that abstains where a confidence score is below a threshold.

    On natural samples an abstention is an error; on adversarial ones it is a success of the defense. ``rejected`` is
    the share of natural samples on which it abstains.
    """

    natural: Share
    adversarial: Share
    rejected: Share

    def __repr__(self) -> str:
        return f"with rejection: natural {self.natural}, adversarial {self.adversarial}; rejects {self.rejected}"


def rejection(
    threshold: float, natural: ArrayLike, natural_wrong: ArrayLike, adversarial: ArrayLike, wrong: ArrayLike
) -> Rejection:
    """Accuracy with rejection of scores below ``threshold``, which validation samples should have set.

    ``natural`` and ``adversarial`` (n,) are the scores of samples before and after an attack, ``natural_wrong`` and
    ``wrong`` say which of them are misclassified.

    >>> found = rejection(0.5, [0.9, 0.2, 0.8], [False, False, True], [0.1, 0.7, 0.9], [True, True, True])
    >>> [round(share.value, 2) for share in (found.natural, found.adversarial, found.rejected)]
    [0.33, 0.33, 0.33]
    """
    before, before_wrong, _ = _checked(natural, natural_wrong, None)
    after, after_wrong, _ = _checked(adversarial, wrong, None)
    return Rejection(
        natural=Share.of(~before_wrong & (before >= threshold)),
        adversarial=Share.of(~after_wrong | (after < threshold)),
        rejected=Share.of(before < threshold),
    )


def save_detector(detector: Detector, path: str | Path) -> None:
    """Write a fitted detector with its threshold as safetensors."""
    if not isinstance(detector, Detector):
        raise ValueError(f"the detector is a {type(detector).__name__} but must be a Detector; see Detector.fit")
    path = path_of(path, "path")
    snapshot.write(path, detector.state_dict(), {"kind": _KIND, "layer": detector.layer})


def load_detector(path: str | Path) -> Detector:
    """Read what :func:`save_detector` wrote; any other file is refused."""
    path = path_of(path, "path")
    tensors, facts = snapshot.read(path)
    if facts.get("kind") != _KIND:
        raise ValueError(f"{path} holds no detector but {json.dumps(facts)[:80]}; save one with save_detector")
    detector = Detector(tensors["means"], tensors["whitening"], tensors["constant"], facts["layer"])
    detector.threshold = tensors["threshold"]
    return detector


def _checked(scores: ArrayLike, wrong: ArrayLike, image: ArrayLike | None) -> tuple[Array, Array, Array]:
    values, errors = np.asarray(scores, dtype=np.float64), np.asarray(wrong)
    images = np.arange(len(values)) if image is None else np.unique(np.asarray(image), return_inverse=True)[1]
    if values.ndim != 1 or errors.shape != values.shape or errors.dtype != bool or images.shape != values.shape:
        raise ValueError(
            f"scores have shape {values.shape}, wrong {errors.dtype} of shape {errors.shape}, image {images.shape}; "
            "give one number, one boolean and one image for each sample"
        )
    if not len(values) or np.isnan(values).any():
        raise ValueError(f"scores hold {int(np.isnan(values).sum())} NaN values of {len(values)}; give finite scores")
    return values, errors, images


def _curve(weights: Array, errors: Array, ends: Array) -> tuple[Array, Array]:
    """False and true positive rates as the threshold rises over samples sorted by score; nan without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = [np.cumsum(weights * mask)[ends] / (weights * mask).sum() for mask in (~errors, errors)]
    return np.append(0.0, rates[0]), np.append(0.0, rates[1])


def _area(fpr: Array, tpr: Array) -> float:
    return float(np.trapezoid(tpr, fpr))


def _reached(fpr: Array, tpr: Array, rate: float) -> float:
    """The largest true positive rate at a false positive rate of at most ``rate``."""
    if np.isnan(fpr).any() or np.isnan(tpr).any():
        return float("nan")
    return float(tpr[fpr <= rate + 1e-12].max())


def _thinned(values: Array, most: int = 400) -> Array:
    """At most so many points of a curve, with both ends."""
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(int)]
