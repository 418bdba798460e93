"""The modified LeNet of the TLA paper."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes, make_activation


class LeNet(Encoder):
    """Four 3x3 convolutions with batch norm, two max-poolings, one hidden layer of 1024 (Mao et al. 2019, Table 5).

    Convolutions and linear layers have biases, and padding preserves the size, as in the authors' code. ``channels`` is
    the width of the first convolution; each of the others has twice as many channels as the one before.
    """

    def __init__(
        self, shape: tuple[int, ...], *, width: int = 1024, channels: int = 32, activation: Activation = "relu"
    ) -> None:
        inputs, height, wide = image_sizes(shape, width=width, channels=channels)
        layers = nn.Sequential(
            *_block(inputs, channels, activation),
            *_block(channels, 2 * channels, activation),
            nn.MaxPool2d(2),
            *_block(2 * channels, 4 * channels, activation),
            *_block(4 * channels, 8 * channels, activation),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * channels * (height // 4) * (wide // 4), width),
            nn.BatchNorm1d(width),
            make_activation(activation),
        )
        super().__init__(width, layers)


def _block(inputs: int, outputs: int, activation: Activation) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), make_activation(activation)]
