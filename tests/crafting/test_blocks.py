"""Blocks of pixels as channels: the same input gradient as torch's backward."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.crafting import blocks

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(st.integers(1, 4), SIZES, st.data(), st.integers(0, 10**6))
def test_the_gradient_of_images(channels, size, data, seed) -> None:
    torch.manual_seed(seed)
    pads = tuple(data.draw(st.integers(0, wide - 1)) for wide in size)
    conv = nn.Conv2d(channels, 5, size, padding=pads).double()
    wide = blocks.side(conv)
    x = torch.randn(2, channels, 8, 12, dtype=torch.float64, requires_grad=True)
    y = conv(x)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    found = blocks.image_gradient(grad, blocks.kernel(conv.weight, wide), conv, wide)
    assert wide == (4 if channels == 1 else 2)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(5, 4, 3),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Conv2d(3, 4, 3, dilation=2),
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 4, 1, padding=1),
        nn.Conv2d(3, 4, 3, device="meta"),
    ],
)
def test_convolutions_of_another_kind_are_left_alone(conv) -> None:
    assert blocks.side(conv) == 1
