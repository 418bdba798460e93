"""Training under Gaussian noise."""

from dataclasses import dataclass
from math import inf

from torch import nn

from holdfast.contracts import Batch, Needs, Terms
from holdfast.methods._craft import check_settings, checked, passes
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Cross entropy on samples with Gaussian noise of standard deviation ``sigma``, as Cohen et al. (2019) train.

    It is for networks that are smoothed with the same sigma. Noise is added before normalization, drawn anew in every
    step, and not clipped.
    """

    sigma: float = 0.25
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < self.sigma < inf:
            raise ValueError(f"sigma is {self.sigma} but noise has a standard deviation above 0, e.g. 0.25")

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        noise = rng.fork("noise").at(batch.index).normal(batch.x)
        out = adapt(model).outputs(batch.x + self.sigma * noise)
        total = mean_cross_entropy(model, out, batch.rows(), self.smoothing)
        return Terms(total, {"cross_entropy": total}, passes(batch), (out,))
