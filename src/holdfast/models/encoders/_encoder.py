"""What encoders share: a forward pass through their layers, and activation functions by name."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from holdfast.settings import is_size

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


def check_sizes(shape: object, **sizes: object) -> None:
    """Refuse a shape of inputs or sizes of layers that are no whole numbers from 1."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape or not all(map(is_size, shape)):
        raise ValueError(f"shape is {shape!r} but must be the sizes of an input, e.g. (3, 32, 32)")
    for name, value in sizes.items():
        if not is_size(value):
            raise ValueError(f"{name} is {value!r} but must be a whole number, 1 or more")


def image_sizes(shape: tuple[int, ...], **sizes: object) -> tuple[int, int, int]:
    """Channels, height and width of images; refuses other shapes, and sizes as :func:`check_sizes` does."""
    check_sizes(shape, **sizes)
    if len(shape) != 3:
        raise ValueError(f"shape is {shape} but this encoder takes images, (channels, height, width); use mlp")
    channels, height, width = shape
    return channels, height, width


def make_activation(name: str) -> nn.Module:
    """Create the activation module with this recipe name."""
    if name not in _MAKE:
        raise ValueError(f"activation is {name!r} but must be one of {', '.join(_MAKE)}; choose one of these")
    return _MAKE[name]()
