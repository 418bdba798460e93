"""The multi-layer perceptron of the TLA rebuttal."""

from itertools import pairwise
from math import prod

from torch import Tensor, nn


class MLP(nn.Module):
    """Hidden layers of 1024 units, each with batch norm and ReLU; three of them in the rebuttal of Mao et al. 2019.

    The representation is the last hidden layer.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int = 1024, depth: int = 3) -> None:
        super().__init__()
        self.width = width
        sizes = [prod(shape), *[width] * depth]
        blocks = [nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)]
        self.layers = nn.Sequential(nn.Flatten(), *blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(b, width) features."""
        features: Tensor = self.layers(x)
        return features
