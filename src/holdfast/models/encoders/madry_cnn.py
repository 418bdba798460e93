"""Madry's small network for MNIST."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes, make_activation


class MadryCNN(Encoder):
    """5x5 convolutions of 32 and 64 channels, each with max-pooling, and one hidden layer of 1024 (Madry et al. 2018).

    There is no batch norm. Weights are initialized from a truncated normal distribution with standard deviation 0.1 and
    biases with 0.1, as in the authors' code.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int = 1024, activation: Activation = "relu") -> None:
        channels, height, wide = image_sizes(shape, width=width)
        layers = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            make_activation(activation),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(32, 64, 5, padding=2),
            make_activation(activation),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Flatten(),
            nn.Linear(64 * -(-height // 4) * -(-wide // 4), width),
            make_activation(activation),
        )
        super().__init__(width, layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
            else:
                nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
