"""Gradients by central finite differences."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def each_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(x), y, reduction="none")


def numeric_gradient(value: Callable[[Tensor], Tensor], at: Tensor, size: float = 1e-5) -> Tensor:
    """The gradient of a scalar function of a tensor, one element at a time."""
    found = torch.empty_like(at)
    for place in range(at.numel()):
        step = torch.zeros_like(at)
        step.view(-1)[place] = size
        found.view(-1)[place] = (value(at + step) - value(at - step)) / (2 * size)
    return found


def input_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the cross entropy of each sample with respect to its input."""
    rows = [
        numeric_gradient(lambda one, i=i: each_loss(model, one[None], y[i : i + 1])[0], x[i])  # type: ignore[misc]
        for i in range(len(x))
    ]
    return torch.stack(rows)


def parameter_gradients(model: nn.Module, total: Callable[[], Tensor], size: float = 1e-5) -> list[Tensor]:
    """The gradients of a total with respect to the parameters of a model."""
    found = []
    for parameter in model.parameters():
        original = parameter.detach().clone()

        def value(moved: Tensor, parameter: Tensor = parameter) -> Tensor:
            with torch.no_grad():
                parameter.copy_(moved)
            return total().detach()

        found.append(numeric_gradient(value, original, size))
        with torch.no_grad():
            parameter.copy_(original)
    return found
