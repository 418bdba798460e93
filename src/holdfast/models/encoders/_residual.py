"""What the residual encoders are made of: pre-activation units (He et al. 2016, Identity Mappings) and their parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from holdfast.models.encoders._activation import Activation, make_activation


class Same(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: with stride 2 the odd pixel goes to the right and the bottom.

    Published TensorFlow weights only give their published outputs with this padding. The kernel must not be smaller
    than the stride.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The convolution; each side of the map shrinks to size / stride, rounded up."""
        wide, high = (_ends(x.shape[axis], self.kernel_size[axis], self.stride[axis]) for axis in (-1, -2))
        return functional.conv2d(functional.pad(x, (*wide, *high)), self.weight, self.bias, self.stride)


def _ends(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = -size % stride + kernel - stride  # no branches, so that networks with it can be traced and folded
    return total // 2, total - total // 2


@dataclass(frozen=True)
class Parts:
    """Norms, activations and convolutions of one network.

    ``tensorflow`` gives the padding and the batch-norm eps of networks that were published in TensorFlow.
    """

    activation: Activation
    tensorflow: bool = False

    def norm(self, width: int) -> nn.Module:
        """Batch norm over channels."""
        return nn.BatchNorm2d(width, eps=1e-3 if self.tensorflow else 1e-5)

    def act(self) -> nn.Module:
        """The network's activation."""
        return make_activation(self.activation)

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """A convolution without bias that keeps the size but for its stride."""
        if self.tensorflow and kernel > 1 and stride > 1:  # elsewhere both paddings are the same
            return Same(inputs, outputs, kernel, stride, bias=False)
        return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    def closing(self, width: int) -> nn.Sequential:
        """From the last map to (b, width) features: norm, activation, mean over the map."""
        return nn.Sequential(self.norm(width), self.act(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Unit(nn.Module):
    """Norm and activation before every convolution, plus a shortcut.

    The shortcut starts from the unit's input or, when ``shared``, from what its first norm and activation make of it.
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
        """The unit's map."""
        opened = self.opening(x)
        total: Tensor = self.body(opened) + self.shortcut(opened if self.shared else x)
        return total


def he_normal(module: nn.Module) -> None:
    """Draw every convolution from a normal of variance 2 / fan_out, as the reference codes of these networks do."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def shares(width: int, parts: Sequence[int]) -> list[int]:
    """The width divided by each part, at least 1: how wide each stage is when the last one has ``width`` channels."""
    return [max(1, width // part) for part in parts]
