"""The ordinary head."""

from torch import nn


class Linear(nn.Linear):
    """A weight and a bias per class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
