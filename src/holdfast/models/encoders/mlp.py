"""The multi-layer perceptron of the TLA rebuttal."""

from itertools import pairwise
from math import prod

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, check_sizes, make_activation


class MLP(Encoder):
    """Hidden layers of 1024 units, each with batch norm and ReLU; the rebuttal of Mao et al. 2019 has three.

    The features are the last hidden layer.
    """

    def __init__(
        self, shape: tuple[int, ...], *, width: int = 1024, depth: int = 3, activation: Activation = "relu"
    ) -> None:
        check_sizes(shape, width=width, depth=depth)
        sizes = [prod(shape), *[width] * depth]
        super().__init__(width, nn.Sequential(nn.Flatten(), *(_block(a, b, activation) for a, b in pairwise(sizes))))


def _block(inputs: int, outputs: int, activation: Activation) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), make_activation(activation))
