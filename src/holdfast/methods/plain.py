"""Training without a defence."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Batch, Needs, Rows, Terms
from holdfast.methods._craft import passes
from holdfast.methods._entropy import mean_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Cross entropy on clean samples: the undefended model."""

    smoothing: float = 0.0
    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        out = adapt(model).outputs(batch.x)
        total = mean_entropy(model, out, Rows(batch.y, batch.index), self.smoothing)
        return Terms(total, {"cross_entropy": total}, passes(batch), (out,))
