"""The cross entropy of a training pass: its mean over the batch, and its gradient with respect to the input."""

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Outputs, Rows
from holdfast.losses.classification import cross_entropy
from holdfast.methods._hypersphere import hypersphere_of
from holdfast.models.classifier import adapt


def mean_cross_entropy(model: nn.Module, out: Outputs, rows: Rows, smoothing: float) -> Tensor:
    """The mean cross entropy, with the margin of the hypersphere head if the model ends in one."""
    head = hypersphere_of(model, out)
    margin = 0.0 if head is None else head.scale * head.margin
    return cross_entropy(out, rows, smoothing=smoothing, margin=margin).mean()


def input_gradient(model: nn.Module, batch: Batch, x: Tensor, smoothing: float) -> tuple[Outputs, Tensor, Tensor]:
    """A forward pass at x, the cross entropy of each sample, and its input gradient, which can be differentiated."""
    x = x.detach().requires_grad_()
    out = adapt(model).outputs(x)
    loss = cross_entropy(out, batch.rows(), smoothing=smoothing)
    # sum, not mean: a sample's gradient must not depend on the batch size
    (gradient,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
    return out, loss, gradient
