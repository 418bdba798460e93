"""Losses that measure how much the cross entropy l deviates from its linear expansion around a clean sample x.

The expansion is given per sample: ``rows["x"]``, ``rows["loss"]`` = l(x) and ``rows["gradient"]`` = grad l(x).
"""

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.losses.classification import cross_entropy


def linearity_gap(out: Outputs, rows: Rows, *, smoothing: float = 0.0) -> Tensor:
    """|l(x + d) - l(x) - d·grad l(x)|, where x + d is the input of this pass (LLR, Qin et al. 2019)."""
    return (cross_entropy(out, rows, smoothing=smoothing) - rows["loss"] - _along(out, rows)).abs()


def linear_change(out: Outputs, rows: Rows) -> Tensor:
    """|d·grad l(x)|, the change of l that the expansion predicts for d (LLR)."""
    return _along(out, rows).abs()


def gradient_norm(out: Outputs, rows: Rows) -> Tensor:
    """||grad l(x)||_2, which bounds the change of l in every direction; the LLR authors compare with it."""
    return _length(rows["gradient"])


def curvature(out: Outputs, rows: Rows) -> Tensor:
    """||grad l(x + z) - grad l(x)||_2 with grad l(x + z) in ``rows["moved_gradient"]`` (CURE)."""
    return _length(rows["moved_gradient"] - rows["gradient"])


def _along(out: Outputs, rows: Rows) -> Tensor:
    return ((out.x - rows["x"]) * rows["gradient"]).flatten(1).sum(1)


def _length(d: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(d.flatten(1), dim=1)
    return lengths
