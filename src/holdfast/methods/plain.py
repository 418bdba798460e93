"""Training without a defense."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Batch, Needs, Terms
from holdfast.methods._craft import check_settings, checked, passes
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Cross entropy on clean samples: the undefended model."""

    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        out = adapt(model).outputs(batch.x)
        total = mean_cross_entropy(model, out, batch.rows(), self.smoothing)
        return Terms(total, {"cross_entropy": total}, passes(batch), (out,))
