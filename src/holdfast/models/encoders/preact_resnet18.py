"""The pre-activation ResNet-18 for CIFAR-10 used in fast adversarial training."""

from itertools import pairwise

from torch import Tensor, nn

from holdfast.models.encoders._encoder import Activation, image_sizes
from holdfast.models.encoders._residual import Parts, Unit, stage_widths


class PreActResNet18(nn.Module):
    """A 3x3 stem and four stages of two pre-activation units with 64, 128, 256, 512 channels (He et al. 2016).

    Shortcuts are 1x1 convolutions where the size changes. A batch norm precedes the average pooling (Wong et al. 2020).
    """

    def __init__(self, shape: tuple[int, ...], *, width: int = 512, activation: Activation = "relu") -> None:
        inputs, _, _ = image_sizes(shape, width=width)
        super().__init__()
        self.width = width
        parts, sizes = Parts(activation), stage_widths(width, (8, 8, 4, 2, 1))
        self.stem = parts.conv(inputs, sizes[0], 3)
        self.stages = nn.Sequential(*(_stage(parts, a, b, min(i, 1) + 1) for i, (a, b) in enumerate(pairwise(sizes))))
        self.closing = parts.closing(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, width) features."""
        features: Tensor = self.closing(self.stages(self.stem(x)))
        return features


def _stage(parts: Parts, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    changes = stride != 1 or inputs != outputs
    shortcut = parts.conv(inputs, outputs, 1, stride) if changes else None
    first = Unit(parts, (inputs, outputs, outputs), (3, 3), stride, shortcut=shortcut, shared=changes)
    return nn.Sequential(first, Unit(parts, (outputs,) * 3, (3, 3)))
