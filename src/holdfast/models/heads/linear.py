"""The linear head."""

from torch import nn

from holdfast.models.heads._widths import check_widths


class Linear(nn.Linear):
    """A linear layer with bias."""

    def __init__(self, width: int, classes: int) -> None:
        check_widths(width, classes)
        super().__init__(width, classes)
