"""The way back through a convolution to an image of few channels.

Processors compute sixteen channels at a time, so that for an image of one or three most of them idle, in the largest
map of the network. Here a block of pixels is computed as so many channels, by a kernel that is as much wider, and its
pixels are put in their places afterwards.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def side(conv: nn.Conv2d) -> int:
    """The width of blocks for which this pays, 1 where it does not."""
    plain = (*conv.stride, *conv.dilation, conv.groups) == (1, 1, 1, 1, 1)
    if conv.weight.device.type != "cpu" or not plain or min(_pads(conv)) < 0:
        return 1
    return 4 if conv.in_channels == 1 else 2 if conv.in_channels <= 4 else 1


def kernel(weight: Tensor, wide: int) -> Tensor:
    """The kernel that gives blocks of pixels, (channels·wide², out, height + wide - 1, width + wide - 1)."""
    out, channels, height, width = weight.shape
    found = weight.new_zeros(channels, wide, wide, out, height + wide - 1, width + wide - 1)
    back = weight.detach().flip(2, 3).transpose(0, 1)
    for i in range(wide):
        for j in range(wide):
            found[:, i, j, :, i : i + height, j : j + width] = back
    return found.flatten(0, 2).contiguous(memory_format=torch.channels_last)


def image_gradient(grad: Tensor, blocks: Tensor, conv: nn.Conv2d, wide: int) -> Tensor:
    """The gradient of the images, whose height and width are multiples of the blocks', from that of the map."""
    return F.pixel_shuffle(F.conv2d(grad, blocks, None, wide, _pads(conv)), wide)


def _pads(conv: nn.Conv2d) -> list[int]:
    """The padding of a map from which the images' gradient is a convolution."""
    padding = cast(tuple[int, ...], conv.padding)  # words for it are none of the plain layers that runs are made of
    return [size - 1 - pad for size, pad in zip(conv.kernel_size, padding, strict=True)]
