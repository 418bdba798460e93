"""Networks as users write them, importable by name: `own_networks:build` trains in milliseconds on the toy data set."""

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """A convolution with batch norm and two linear layers, whose names are not those of holdfast's classifiers."""

    def __init__(self, classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.hidden, self.drop, self.fc = nn.Linear(64, 6), nn.Dropout(dropout), nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.hidden(self.norm(self.conv(x)).relu().flatten(1)).relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.features(x)))


class Features(Small):
    """An encoder: features without a head."""

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Convolutional(nn.Module):
    """A network without a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).relu()).mean((2, 3))


class Probable(Small):
    """A network with the mistake that most users make."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(super().forward(x), 1)


def build() -> nn.Module:
    return Small()


def wide() -> nn.Module:
    return Small(classes=7)


def encoder() -> nn.Module:
    return Features()


def unflat() -> nn.Module:
    return nn.Conv2d(1, 4, 3)


def dropping() -> nn.Module:
    return Small(dropout=0.5)


def probable() -> nn.Module:
    return Probable()


def convolutional() -> nn.Module:
    return Convolutional()
