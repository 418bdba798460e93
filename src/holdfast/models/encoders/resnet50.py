"""The network that the TLA code calls Res50, for Tiny-ImageNet."""

from torch import nn

from holdfast.models.encoders._encoder import Activation, Encoder, image_sizes
from holdfast.models.encoders._residual import Parts, TLAResNet, Unit, stage_widths


class ResNet50(Encoder):
    """2 + 3 + 5 + 2 pre-activation bottlenecks after a 7x7 stem without max-pooling, 2048 features (Mao et al. 2019).

    This is the network that the authors' code has under this name for 64x64 images, with 12 blocks and not the 16 of
    the usual ResNet-50. ``stem_stride`` is 2 in Table 1 of the paper and 1 in Table 7 and the code. ``extra_blocks``
    are additional blocks after the last stage in train mode, skipped in eval mode; ``extra_blocks=3`` is our
    interpretation of the paper's sentence "we add 3 more blocks of ResNet ... during training, and use the original
    Res50 for the inference".
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 2048,
        stem_stride: int = 1,
        extra_blocks: int = 0,
        activation: Activation = "relu",
    ) -> None:
        inputs, _, _ = image_sizes(shape, width=width, stem_stride=stem_stride)
        sizes = stage_widths(width, (32, 8, 4, 2, 1))
        super().__init__(
            width, TLAResNet(activation, inputs, sizes, (2, 3, 5, 2), _bottleneck, stem_stride, extra_blocks)
        )


def _bottleneck(parts: Parts, inputs: int, outputs: int, stride: int, shortcut: nn.Module | None) -> Unit:
    (hidden,) = stage_widths(outputs, (4,))
    return Unit(parts, (inputs, hidden, hidden, outputs), (1, 3, 1), stride, shortcut=shortcut)
