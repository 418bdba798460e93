"""Parts of residual encoders: pre-activation units (He et al. 2016, Identity Mappings), their layers, TLA's stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from holdfast.models.encoders._encoder import Activation, make_activation


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding, which pads one more pixel on the right and bottom if needed.

    Weights published for TensorFlow need this padding to reproduce their outputs. The kernel must not be smaller than
    the stride.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution; each side of the output has size / stride pixels, rounded up."""
        wide, high = (_padding(x.shape[axis], self.kernel_size[axis], self.stride[axis]) for axis in (-1, -2))
        return functional.conv2d(functional.pad(x, (*wide, *high)), self.weight, self.bias, self.stride)


def _padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = -size % stride + kernel - stride  # no branches, so that the network can be traced
    return total // 2, total - total // 2


@dataclass(frozen=True)
class Parts:
    """Factory for the norms, activations and convolutions of one network.

    ``tensorflow`` selects the padding and the batch-norm eps of networks published for TensorFlow.
    """

    activation: Activation
    tensorflow: bool = False

    def norm(self, width: int) -> nn.Module:
        return nn.BatchNorm2d(width, eps=1e-3 if self.tensorflow else 1e-5)

    def act(self) -> nn.Module:
        return make_activation(self.activation)

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """Create a convolution without bias whose output size is the input size divided by the stride."""
        if self.tensorflow and kernel > 1 and stride > 1:  # otherwise both paddings are the same
            return SameConv2d(inputs, outputs, kernel, stride, bias=False)
        return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    def closing(self, width: int) -> nn.Sequential:
        """Create the last layers: norm, activation and global average pooling to (b, width) features."""
        return nn.Sequential(self.norm(width), self.act(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Unit(nn.Module):
    """A pre-activation residual unit: norm and activation before every convolution, plus a shortcut.

    The shortcut starts from the input of the unit or, if ``shared``, from the output of its first activation.
    """

    def __init__(
        self,
        parts: Parts,
        widths: Sequence[int],
        kernels: Sequence[int],
        stride: int = 1,
        *,
        shortcut: nn.Module | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.shared = shared
        self.opening = nn.Sequential(parts.norm(widths[0]), parts.act())
        first, *rest = zip(pairwise(widths), kernels, strict=True)
        layers: list[nn.Module] = [parts.conv(*first[0], first[1], stride)]
        for (inputs, outputs), kernel in rest:
            layers += [parts.norm(inputs), parts.act(), parts.conv(inputs, outputs, kernel)]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        opened = self.opening(x)
        total: Tensor = self.body(opened) + self.shortcut(opened if self.shared else x)
        return total


def he_normal(module: nn.Module) -> None:
    """Initialize every convolution from a normal distribution with variance 2 / fan_out, as the reference codes do."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def stage_widths(width: int, parts: Sequence[int]) -> list[int]:
    """Return the width divided by each part, at least 1: the channels of each stage."""
    return [max(1, width // part) for part in parts]


MakeUnit = Callable[[Parts, int, int, int, nn.Module | None], Unit]
"""(parts, inputs, outputs, stride, shortcut) -> unit."""


class TLAResNet(nn.Module):
    """A 7x7 stem, stages of pre-activation units (the first of each with a 1x1 shortcut), global average pooling.

    This is what the two Tiny-ImageNet networks of the TLA code share.
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
