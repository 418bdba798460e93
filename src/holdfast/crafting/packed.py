"""Products with large weights by oneDNN, with plain or with packed weights.

Most builds of PyTorch multiply in float32 with MKL, which is slower than oneDNN on some processors, above all with more
than one thread. oneDNN brings plain weights into the order in which the processor reads them anew in every product;
for a few dozen samples that costs a good part of the multiplication, so many passes are worth packing them once.
"""

from typing import cast

import torch
from torch import Tensor

from holdfast.crafting.processor import packs

OFTEN = 20  # forward and backward passes that pay for packing
_LARGE = 1 << 18  # numbers; smaller weights stay in the cache, where their order costs little
_ONEDNN = torch.ops.mkldnn


def worth_packing(weight: Tensor) -> bool:
    """True if oneDNN multiplies with a weight of this size and type faster than PyTorch does by default."""
    return weight.device.type == "cpu" and weight.numel() >= _LARGE and packs(weight.dtype)


class Products:
    """The products of a linear layer with its weight in the forward and the backward pass."""

    def __init__(self, weight: Tensor, packed: bool) -> None:
        self._forward, self._backward = weight, weight.t()
        if packed:
            self._forward = _ONEDNN._reorder_linear_weight(weight, None)
            self._backward = _ONEDNN._reorder_linear_weight(weight.t().contiguous(), None)

    def forward(self, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """The output of the layer, after a ReLU if there is one."""
        return _product(x, self._forward, bias, "relu" if relu else "none")

    def input_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of the input; oneDNN's product has no derivative that autograd knows."""
        return _product(grad, self._backward, None, "none")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, then: str) -> Tensor:
    return cast(Tensor, _ONEDNN._linear_pointwise.default(x, weight, bias, then, [], ""))
