"""A small convolutional network for 8x8 digits, which trains in seconds."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes, make_activation


class Tiny(Encoder):
    """Two 3x3 convolutions with batch norm, the second with stride 2, and one hidden layer."""

    def __init__(
        self, shape: tuple[int, ...], *, channels: int = 16, width: int = 64, activation: Activation = "relu"
    ) -> None:
        inputs, height, wide = image_sizes(shape, width=width, channels=channels)
        layers = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            make_activation(activation),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * channels),
            make_activation(activation),
            nn.Flatten(),
            nn.Linear(2 * channels * ((height + 1) // 2) * ((wide + 1) // 2), width),
            nn.BatchNorm1d(width),
            make_activation(activation),
        )
        super().__init__(width, layers)
