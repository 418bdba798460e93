"""Activation functions of encoders, by name."""

from collections.abc import Callable
from typing import Literal

from torch import nn

Activation = Literal["relu", "leaky_relu", "softplus"]

_MAKE: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),  # the negative slope of Madry's CIFAR-10 network
    "softplus": nn.Softplus,
}


def make_activation(name: str) -> nn.Module:
    """Create the activation module with this recipe name."""
    if name not in _MAKE:
        raise ValueError(f"activation is {name!r} but must be one of {', '.join(_MAKE)}; choose one of these")
    return _MAKE[name]()
