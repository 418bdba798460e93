"""Weights in the order in which a processor's matrix unit reads them.

oneDNN brings plain weights into that order anew in every product, which for a few dozen samples costs a good part of
multiplying them; and torch's own library for products in float32 is slower than oneDNN's on some processors.
"""

from typing import cast

import torch
from torch import Tensor

from holdfast.crafting.processor import packs

OFTEN = 20  # passes there and back that pay for the packing
_LARGE = 1 << 18  # numbers; smaller weights stay in the cache, where order costs little
_ONEDNN = torch.ops.mkldnn


def worth_packing(weight: Tensor) -> bool:
    """Whether products with this weight are of the kind that packing makes faster."""
    return weight.device.type == "cpu" and weight.numel() >= _LARGE and packs(weight.dtype)


class Packed:
    """The weight of a linear layer, packed for both ways."""

    def __init__(self, weight: Tensor) -> None:
        self._there = _ONEDNN._reorder_linear_weight(weight, None)
        self._back = _ONEDNN._reorder_linear_weight(weight.t().contiguous(), None)

    def there(self, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """The layer's output, after a ReLU where there is one."""
        return _product(x, self._there, bias, "relu" if relu else "none")

    def back(self, grad: Tensor) -> Tensor:
        """The gradient before the layer; oneDNN's product has no derivative of its own."""
        return _product(grad, self._back, None, "none")


def _product(x: Tensor, packed: Tensor, bias: Tensor | None, then: str) -> Tensor:
    return cast(Tensor, _ONEDNN._linear_pointwise.default(x, packed, bias, then, [], ""))
