"""Lipschitz constants of networks, layer by layer (Szegedy et al. 2014)."""

import torch
from torch import Tensor

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.network import Network
from holdfast.certify._bounds.propagate import Bounds

_WIDER = 1 + 1e-9  # the rounding errors of singular values and of sums in float64


def constant(network: Network, index: int, shape: tuple[int, ...]) -> float:
    """An upper bound of the Lipschitz constant of a node in L2, for inputs of a shape without the batch axis."""
    found, shapes = {0: 1.0}, {0: shape}
    for i, node in network.nodes.items():
        inputs, operation, given = [found[j] for j in node.inputs], node.operation, shapes[node.inputs[0]]
        if isinstance(operation, ops.Add):
            found[i] = sum(inputs)
        elif isinstance(operation, ops.Affine):
            found[i] = inputs[0] * _length(operation, given) * _WIDER
        elif isinstance(operation, ops.MaxPool):
            found[i] = inputs[0] * _overlap(operation) ** 0.5
        else:  # slopes of activations are at most 1
            found[i] = inputs[0]
        shapes[i] = node.shape
    return found[index]


def _length(operation: ops.Affine, shape: tuple[int, ...]) -> float:
    """The spectral norm of a matrix; of other affine operations sqrt(|W|_1 |W|_inf), which is no smaller."""
    if isinstance(operation, ops.Linear) and len(shape) == 1:
        return float(torch.linalg.matrix_norm(operation.weight, 2))
    with torch.enable_grad():
        ones = torch.ones(1, *shape, dtype=torch.float64, device=operation.shift.device, requires_grad=True)
        rows = operation.spread(ones)
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return float((rows.detach().max() * columns.max()).sqrt())


def _overlap(pool: ops.MaxPool) -> float:
    """The most windows that one input is in: as often at most it is counted in the squared length of the outputs."""
    most = 1
    for kernel, stride, dilation in zip(pool.kernel, pool.stride, pool.dilation, strict=True):
        spots = torch.arange(kernel) * dilation % stride
        most *= int(torch.bincount(spots).max())
    return most


def rounding_of(bounds: Bounds, index: int) -> Tensor:
    """How far at most execution in float32 moves the numbers of a node, anywhere in the region of the bounds."""
    network = bounds.network
    found = {0: torch.zeros_like(bounds.region.x)}
    for i, node in network.nodes.items():
        operation, given = node.operation, [found[j] for j in node.inputs]
        if isinstance(operation, ops.Add):
            moved = given[0] + given[1]
        elif isinstance(operation, ops.Affine):
            moved = operation.spread(given[0])
        elif isinstance(operation, ops.MaxPool):
            moved = operation.apply(given[0])
        else:
            moved = given[0]
        found[i] = moved + bounds.errors[i]
    return found[index] * _WIDER
