"""Wide residual networks, in the common form and in that of Madry's CIFAR-10 network."""

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from holdfast.models.encoders._encoder import Activation, image_sizes
from holdfast.models.encoders._residual import Parts, Unit, he_normal, stage_widths


class WRN(nn.Module):
    """A wide residual network (Zagoruyko and Komodakis 2016): 3x3 stem of 16 channels, three stages of units.

    WRN-34-10 is ``depth=34, width=640``: each stage has (depth - 4) / 6 units, and the stages have width / 4, width / 2
    and width channels, so that width is 64 times the widening factor. ``form="common"`` has 1x1 shortcuts and ReLU, as
    in TRADES and in hypersphere embedding. ``form="madry"`` is the "w32-10" of Madry et al. 2018 and of the TLA paper:
    leaky ReLU, shortcuts by average pooling and zero channels, padding and batch-norm eps of its TensorFlow code.
    ``activation`` overrides that of the form.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        width: int = 640,
        depth: int = 34,
        form: Literal["common", "madry"] = "common",
        activation: Activation | None = None,
    ) -> None:
        channels, _, _ = image_sizes(shape, width=width, depth=depth)
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth is {depth} but a wide residual network has 6 n + 4 layers; use 16, 22, 28 or 34")
        if form not in _SHORTCUTS:
            raise ValueError(f"form is {form!r} but must be one of {', '.join(_SHORTCUTS)}; choose one of these")
        self.width = width
        madry = form == "madry"
        parts = Parts(activation or ("leaky_relu" if madry else "relu"), tensorflow=madry)
        sizes = [16, *stage_widths(width, (4, 2, 1))]
        self.stem = parts.conv(channels, 16, 3)
        self.stages = nn.Sequential()
        for number, (inputs, outputs) in enumerate(pairwise(sizes)):
            stride = 1 if number == 0 else 2
            shortcut = _SHORTCUTS[form](parts, inputs, outputs, stride)
            shared = number == 0 if madry else shortcut is not None
            first = Unit(parts, (inputs, outputs, outputs), (3, 3), stride, shortcut=shortcut, shared=shared)
            rest = (Unit(parts, (outputs,) * 3, (3, 3)) for _ in range((depth - 4) // 6 - 1))
            self.stages.append(nn.Sequential(first, *rest))
        self.closing = parts.closing(width)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return (b, width) features."""
        features: Tensor = self.closing(self.stages(self.stem(x)))
        return features


class _PooledShortcut(nn.Module):
    """A shortcut without weights: average pooling, then zero channels on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, before = stride, (outputs - inputs) // 2
        self.channels = (before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(x, self.stride, ceil_mode=True)
        return functional.pad(x, (0, 0, 0, 0, *self.channels))


def _convolution_shortcut(parts: Parts, inputs: int, outputs: int, stride: int) -> nn.Module | None:
    return parts.conv(inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None


def _pooled_shortcut(_parts: Parts, inputs: int, outputs: int, stride: int) -> nn.Module | None:
    return _PooledShortcut(inputs, outputs, stride) if inputs != outputs or stride != 1 else None


_SHORTCUTS = {"common": _convolution_shortcut, "madry": _pooled_shortcut}
