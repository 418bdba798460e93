"""A detector of misclassified samples, and a classifier that abstains where the detector is not confident."""

from collections import Counter
from typing import Self

import torch
from torch import Tensor, nn

from holdfast.contracts import Outputs
from holdfast.models.classifier import adapt
from holdfast.settings import check_tensors, is_number

_WIDEST = 4096  # dimensions; the covariances of ten classes then take 0.7 GiB


class Detector(nn.Module):
    """One Gaussian per class in feature space; the confidence of a sample is its largest class log density.

    Zheng and Hong (2018) detect adversarial examples in this way and Mao et al. (2019) misclassified ones. The
    covariance of each class is shrunk toward a multiple of the identity (Ledoit and Wolf 2004), so that features
    that never change in a class do not make it singular. ``threshold`` is the confidence below which a sample is
    rejected; -inf, the default, rejects nothing. ``layer`` names the layer of the features, None for the input of
    the last linear layer.
    """

    means: Tensor
    whitening: Tensor
    constant: Tensor
    threshold: Tensor

    def __init__(self, means: Tensor, whitening: Tensor, constant: Tensor, layer: str | None = None) -> None:
        super().__init__()
        check_tensors(means=means, whitening=whitening, constant=constant)
        sizes = tuple(means.shape), tuple(whitening.shape), tuple(constant.shape)
        if means.ndim != 2 or sizes[1:] != ((*sizes[0], sizes[0][1]), sizes[0][:1]):
            raise ValueError(
                f"means, whitening and constant have shapes {sizes[0]}, {sizes[1]} and {sizes[2]} but (classes, d), "
                "(classes, d, d) and (classes,) are needed; Detector.fit(features, y) makes them"
            )
        self.layer = layer
        self.register_buffer("means", means)
        self.register_buffer("whitening", whitening)
        self.register_buffer("constant", constant)
        self.register_buffer("threshold", torch.tensor(-torch.inf))

    @staticmethod
    def fit(features: Tensor, y: Tensor, layer: str | None = None) -> "Detector":
        """Fit a detector to the features (n, d) of training samples with labels ``y``; every class needs two."""
        _check(features, y)
        classes = [features[y == k].double().cpu() for k in sorted(set(y.tolist()))]
        means, whitening, constant = (torch.stack(each) for each in zip(*map(_gaussian, classes), strict=True))
        return Detector(means, whitening, constant, layer).to(features.device)

    def densities(self, features: Tensor) -> Tensor:
        """(b, classes) the log density of every class."""
        check_tensors(features=features)
        if features.ndim != 2 or features.shape[1] != self.means.shape[1]:
            raise ValueError(
                f"features have shape {tuple(features.shape)} but the detector was fitted to "
                f"{self.means.shape[1]} dimensions; take them from the same layer"
            )
        pairs = zip(self.means, self.whitening, self.constant, strict=True)
        return torch.stack([c - ((features - mean) @ white).square().sum(1) / 2 for mean, white, c in pairs], 1)

    def score(self, features: Tensor) -> Tensor:
        """(b,) the confidence: the largest class log density."""
        return self.densities(features).amax(1)

    forward = score

    def rejects(self, features: Tensor) -> Tensor:
        """(b,) whether the confidence is below the threshold."""
        return self.score(features) < self.threshold

    @torch.no_grad()
    def calibrate(self, features: Tensor, rate: float) -> Self:
        """Set the threshold so that at most the share ``rate`` of these samples is rejected; returns the detector.

        Give natural validation samples that are classified correctly: neither the samples of :meth:`fit`, whose
        confidence is too high, nor test samples.
        """
        check_tensors(features=features)
        if not is_number(rate) or not 0 <= rate < 1 or not len(features):
            raise ValueError(f"rate is {rate!r} for {len(features)} samples but a share in [0, 1) of some is needed")
        ascending = self.score(features).sort().values
        self.threshold = ascending[int(rate * len(ascending))]
        return self


class Abstaining(nn.Module):
    """A classifier with a detector: it returns the logits of ``model`` and abstains where the detector rejects.

    On natural samples an abstention is an error; on adversarial ones it is a success of the defense, and
    :func:`holdfast.evaluate` counts it so. An attack on this model must therefore find samples that are misclassified
    and accepted: use ``PGD(threat=threat, loss=Evasion(detector.score), keep="worst")``.
    """

    def __init__(self, model: nn.Module, detector: Detector) -> None:
        super().__init__()
        adapt(model)  # refuses what is no module
        if not isinstance(detector, Detector):
            raise ValueError(f"the detector is a {type(detector).__name__} but must be a Detector; see Detector.fit")
        self.model = model
        self.detector = detector

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features, of the layer of the detector unless another is named, and logits."""
        return adapt(self.model).outputs(x, layer or self.detector.layer)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = adapt(self.model)(x)
        return logits

    @torch.no_grad()
    def abstains(self, x: Tensor) -> Tensor:
        """(b,) whether the model abstains."""
        return self.detector.rejects(self.outputs(x).features)


def _check(features: Tensor, y: Tensor) -> None:
    check_tensors(features=features, y=y)
    if features.ndim != 2 or y.shape != (len(features),) or not len(y):
        raise ValueError(
            f"features have shape {tuple(features.shape)} and labels {tuple(y.shape)} but (samples, dimensions) and "
            "one label per sample are needed"
        )
    if features.shape[1] > _WIDEST:
        raise ValueError(
            f"the features have {features.shape[1]} dimensions but a Gaussian per class is fitted to at most "
            f"{_WIDEST}; take them from a smaller layer"
        )
    if not features.isfinite().all():
        raise ValueError("features hold NaN or infinite values; check the model for overflow")
    counts = Counter(y.tolist())
    if min(counts.values()) < 2:
        raise ValueError(
            f"class {min(counts, key=lambda k: counts[k])} has one sample but a Gaussian needs at least two; give more "
            "samples or leave the class out"
        )


def _gaussian(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, a matrix w with inverse covariance w·w', and the log density at the mean."""
    from sklearn.covariance import ledoit_wolf  # here, because importing scikit-learn takes long

    covariance = torch.from_numpy(ledoit_wolf(features.numpy())[0])
    size = len(covariance)
    # a class whose features are all equal has no covariance to shrink
    covariance += torch.eye(size) * max(1e-12, 1e-6 * float(covariance.diagonal().mean()))
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, torch.eye(size, dtype=factor.dtype), upper=False).T
    constant = -factor.diagonal().log().sum() - size / 2 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    return features.mean(0).float(), white.float(), constant.float()
