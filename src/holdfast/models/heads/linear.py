"""The linear head."""

from torch import nn


class Linear(nn.Linear):
    """A linear layer with bias."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
