"""Losses on how far the loss is from its linear expansion around a sample; the expansion travels in the rows.

Each of them is about l, the cross entropy; ``rows`` hold what is known of it at the clean sample: ``x``, ``loss`` =
l(x) and ``gradient``, the gradient of l at x, per sample.
"""

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.losses.classification import cross_entropy


def linearity_gap(out: Outputs, rows: Rows, *, smoothing: float = 0.0) -> Tensor:
    """|l(x + d) - l(x) - d·grad l(x)| at the point x + d of this pass (LLR, Qin et al. 2019)."""
    return (cross_entropy(out, rows, smoothing=smoothing) - rows["loss"] - _along(out, rows)).abs()


def linear_change(out: Outputs, rows: Rows) -> Tensor:
    """|d·grad l(x)|, what the expansion says of d (LLR)."""
    return _along(out, rows).abs()


def gradient_norm(out: Outputs, rows: Rows) -> Tensor:
    """The Euclidean length of grad l(x), the looser bound that LLR was compared with."""
    return _length(rows["gradient"])


def curvature(out: Outputs, rows: Rows) -> Tensor:
    """The Euclidean length of the change from ``rows["gradient"]`` to ``rows["moved_gradient"]`` (CURE)."""
    return _length(rows["moved_gradient"] - rows["gradient"])


def _along(out: Outputs, rows: Rows) -> Tensor:
    return ((out.x - rows["x"]) * rows["gradient"]).flatten(1).sum(1)


def _length(d: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(d.flatten(1), dim=1)
    return lengths
