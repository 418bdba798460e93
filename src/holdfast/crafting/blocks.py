"""The input gradient of a convolution whose input is an image with few channels.

A vector instruction computes eight or sixteen channels at a time; for an image with one or three channels most of its
lanes are idle, in the largest feature map of the network. Here the pixels of a block are computed as channels of one
pixel, with a correspondingly larger kernel, and rearranged afterwards (pixel shuffle).
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def side(conv: nn.Conv2d) -> int:
    """The width of the blocks for a convolution; 1 where blocks do not pay."""
    plain = (*conv.stride, *conv.dilation, conv.groups) == (1, 1, 1, 1, 1)
    if conv.weight.device.type != "cpu" or not plain or min(_pads(conv)) < 0:
        return 1
    return 4 if conv.in_channels == 1 else 2 if conv.in_channels <= 4 else 1


def kernel(weight: Tensor, wide: int) -> Tensor:
    """The kernel that computes blocks, of shape (channels·wide², out, height + wide - 1, width + wide - 1)."""
    out, channels, height, width = weight.shape
    found = weight.new_zeros(channels, wide, wide, out, height + wide - 1, width + wide - 1)
    transposed = weight.detach().flip(2, 3).transpose(0, 1)
    for i in range(wide):
        for j in range(wide):
            found[:, i, j, :, i : i + height, j : j + width] = transposed
    return found.flatten(0, 2).contiguous(memory_format=torch.channels_last)


def image_gradient(grad: Tensor, blocks: Tensor, conv: nn.Conv2d, wide: int) -> Tensor:
    """The gradient of images from that of the feature map; height and width must be multiples of the blocks' width."""
    return F.pixel_shuffle(F.conv2d(grad, blocks, None, wide, _pads(conv)), wide)


def _pads(conv: nn.Conv2d) -> list[int]:
    """The padding with which the gradient of the images is a convolution of the feature map's."""
    padding = cast(tuple[int, ...], conv.padding)  # "same" and "valid" are not among the layers that are fused
    return [size - 1 - pad for size, pad in zip(conv.kernel_size, padding, strict=True)]
