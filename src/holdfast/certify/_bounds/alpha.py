"""Lower bounds with slopes that are optimized: alpha-CROWN (Xu et al. 2021)."""

import torch
from torch import Tensor

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.propagate import Bounds

_RATE = 0.1
_DECAY = 0.98


def optimized(bounds: Bounds, index: int, rows: Tensor, lower: Tensor, steps: int) -> Tensor:
    """The largest of ``lower`` and the lower bounds (b, k) of rows (b, k, ...) over the steps of an optimizer.

    Every choice of slopes in [0, 1] gives a valid bound, so that the search need not converge. The choices of each
    sample and row are its own, so a result does not depend on the batch.
    """
    choices = {i: _start(bounds, i, rows.shape[1]) for i in _activations(bounds)}
    if not choices:
        return lower
    optimizer = torch.optim.Adam(choices.values(), _RATE)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, _DECAY)
    for _ in range(steps):
        with torch.enable_grad():
            found = bounds.lower(index, rows, choices)
            optimizer.zero_grad()
            (-found.sum()).backward()  # type: ignore[no-untyped-call]
        lower = torch.maximum(lower, found.detach())
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for choice in choices.values():
                choice.clamp_(0, 1)
    return torch.maximum(lower, bounds.lower(index, rows, choices))


def _activations(bounds: Bounds) -> list[int]:
    return [i for i, node in bounds.network.nodes.items() if isinstance(node.operation, ops.Activation)]


def _start(bounds: Bounds, index: int, rows: int) -> Tensor:
    node = bounds.network.nodes[index]
    assert isinstance(node.operation, ops.Activation)
    of = bounds.intervals[node.inputs[0]]
    return node.operation.start(of)[:, None].repeat(1, rows, *[1] * (of.low.ndim - 1)).requires_grad_()
