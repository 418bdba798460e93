"""The architecture shared by the two Tiny-ImageNet networks of the TLA code."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from holdfast.models.encoders._encoder import Activation
from holdfast.models.encoders._residual import Parts, Unit, he_normal

MakeUnit = Callable[[Parts, int, int, int, nn.Module | None], Unit]
"""(parts, inputs, outputs, stride, shortcut) -> unit."""


class TLAResNet(nn.Module):
    """A 7x7 stem, stages of pre-activation units (the first of each with a 1x1 shortcut), global average pooling.

    ``sizes`` are the channels of the stem and of each stage, ``units`` the number of units of each stage. The extra
    blocks follow the last stage in train mode and are skipped in eval mode.
    """

    def __init__(
        self,
        activation: Activation,
        channels: int,
        sizes: Sequence[int],
        units: Sequence[int],
        unit: MakeUnit,
        stem_stride: int,
        extra_blocks: int,
    ) -> None:
        super().__init__()
        parts = Parts(activation, tensorflow=True)
        stem = parts.conv(channels, sizes[0], 7, stem_stride)
        self.stem = nn.Sequential(stem, parts.norm(sizes[0]), parts.act())
        self.stages = nn.Sequential()
        for number, ((inputs, outputs), many) in enumerate(zip(pairwise(sizes), units, strict=True)):
            stride = 1 if number == 0 else 2
            first = unit(parts, inputs, outputs, stride, parts.conv(inputs, outputs, 1, stride))
            rest = (unit(parts, outputs, outputs, 1, None) for _ in range(many - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.extra = nn.Sequential(*(unit(parts, sizes[-1], sizes[-1], 1, None) for _ in range(extra_blocks)))
        self.closing = parts.closing(sizes[-1])
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, width) features."""
        x = self.stages(self.stem(x))
        features: Tensor = self.closing(self.extra(x) if self.training else x)
        return features
