"""The network that the TLA code calls Res20, for Tiny-ImageNet."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes
from holdfast.models.encoders._residual import Parts, TLAResNet, Unit, stage_widths


class ResNet20(Encoder):
    """Four pre-activation units of two 3x3 convolutions after a 7x7 stem, 512 features (Mao et al. 2019, Table 7).

    This is the network that the authors' code has under this name for 64x64 images, with 10 layers and not 20.
    ``stem_stride`` and ``extra_blocks`` are as in :class:`ResNet50 <holdfast.models.encoders.resnet50.ResNet50>`.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 512,
        stem_stride: int = 1,
        extra_blocks: int = 0,
        activation: Activation = "relu",
    ) -> None:
        inputs, _, _ = image_sizes(shape, width=width, stem_stride=stem_stride)
        sizes = stage_widths(width, (8, 8, 4, 2, 1))
        super().__init__(width, TLAResNet(activation, inputs, sizes, (1, 1, 1, 1), _basic, stem_stride, extra_blocks))


def _basic(parts: Parts, inputs: int, outputs: int, stride: int, shortcut: nn.Module | None) -> Unit:
    return Unit(parts, (inputs, outputs, outputs), (3, 3), stride, shortcut=shortcut)
