"""The small convolutional network of the TLA rebuttal."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes, make_activation
from holdfast.models.encoders._residual import he_normal


class ConvNet(Encoder):
    """Three 5x5 convolutions, each followed by pooling, and one that covers the remaining map (rebuttal of TLA, 2019).

    On 32x32 images the last convolution is 4x4, and its 128 outputs are the features. Convolutions have no bias.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int = 128, activation: Activation = "relu") -> None:
        channels, height, wide = image_sizes(shape, width=width)
        if min(height, wide) < 8:
            raise ValueError(f"shape is {shape} but convnet halves an image three times; use sides of 8 or more pixels")
        layers = nn.Sequential(
            *_block(channels, 32, (5, 5), activation, padding=2),
            nn.MaxPool2d(2),
            *_block(32, 32, (5, 5), activation, padding=2),
            nn.AvgPool2d(2),
            *_block(32, 64, (5, 5), activation, padding=2),
            nn.AvgPool2d(2),
            *_block(64, width, (height // 8, wide // 8), activation, padding=0),
            nn.Flatten(),
        )
        super().__init__(width, layers)
        he_normal(self)


def _block(
    inputs: int, outputs: int, kernel: tuple[int, int], activation: Activation, *, padding: int
) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), make_activation(activation)]
