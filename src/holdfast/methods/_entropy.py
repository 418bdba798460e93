"""The cross entropy that fits labels, in every method the same."""

from torch import Tensor, nn

from holdfast.contracts import Outputs, Rows
from holdfast.losses.classification import cross_entropy
from holdfast.methods._sphere import hypersphere_of


def mean_entropy(model: nn.Module, out: Outputs, rows: Rows, smoothing: float) -> Tensor:
    """The mean cross entropy of a training pass, with the margin of the hypersphere head if one made the logits."""
    head = hypersphere_of(model, out)
    margin = 0.0 if head is None else head.scale * head.margin
    return cross_entropy(out, rows, smoothing=smoothing, margin=margin).mean()
