"""Inputs and models for the sketches, which docs/decisions/0002-contracts.md explains."""

import torch
from torch import Tensor, nn

from holdfast.rng import Rng


def numbers(*shape: int, name: str) -> Tensor:
    return Rng(1).fork(name).uniform(torch.empty(shape, dtype=torch.float64))


def network(inputs: int = 4, classes: int = 3) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes)).double()
    for i, p in enumerate(model.parameters()):
        p.data = 4 * numbers(*p.shape, name=f"weight {i}") - 2
    return model


def linear(inputs: int, classes: int) -> nn.Linear:
    model = nn.Linear(inputs, classes).double()
    for i, p in enumerate(model.parameters()):
        p.data = numbers(*p.shape, name=f"linear {i}") - 0.5
    return model


def half_spaces(model: nn.Linear, x: Tensor, norm: int) -> tuple[Tensor, Tensor]:
    """The predicted labels, and the distance to the nearest other class in closed form; ``norm`` is the dual one."""
    z = model(x).detach()
    y = z.argmax(1)
    fall = z.gather(1, y[:, None]) - z
    slope = torch.linalg.vector_norm(model.weight[y][:, None] - model.weight[None], ord=norm, dim=2).detach()
    return y, torch.where(slope > 0, fall / slope, torch.inf).amin(1)
