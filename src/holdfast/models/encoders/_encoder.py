"""What encoders share: a forward pass through their layers, and activation functions by name."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

Activation = Literal["relu", "leaky_relu", "softplus"]

_MAKE: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),  # the negative slope of Madry's CIFAR-10 network
    "softplus": nn.Softplus,
}


class Encoder(nn.Module):
    """An encoder that consists of ``layers``, whose output are the ``width`` features."""

    def __init__(self, width: int, layers: nn.Module) -> None:
        super().__init__()
        self.width, self.layers = width, layers

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, width) features."""
        features: Tensor = self.layers(x)
        return features


def make_activation(name: str) -> nn.Module:
    """Create the activation module with this recipe name."""
    if name not in _MAKE:
        raise ValueError(f"activation is {name!r} but must be one of {', '.join(_MAKE)}; choose one of these")
    return _MAKE[name]()
