"""Detects whether the tensors of modules changed since the last call."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Unchanged:
    """Compares the addresses and version counters of tensors and, because writing through ``.data`` changes neither,
    copies of their contents.

    Copies are made the second time that addresses and versions are the same, so that training does not pay for them.
    On devices other than the CPU, where a comparison would have to wait for the device, everything counts as changed.
    """

    def __init__(self) -> None:
        self._known: list[tuple[int, int, torch.dtype, tuple[int, ...]]] = []
        self._copies: list[Tensor] = []

    def __call__(self, modules: Sequence[nn.Module]) -> bool:
        """True if the tensors of these modules are the same as in the last call."""
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        if any(tensor.device.type != "cpu" or tensor.is_inference() for tensor in tensors):
            return False  # inference tensors have no versions
        known = [(tensor.data_ptr(), tensor._version, tensor.dtype, tensor.stride()) for tensor in tensors]
        if known != self._known:
            self._known, self._copies = known, []
            return False
        if len(self._copies) == len(tensors) and all(map(_same_bits, tensors, self._copies)):
            return True
        self._copies = [tensor.detach().clone() for tensor in tensors]
        return False


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors of one shape have the same bits; compared as numbers, -0.0 would equal 0.0."""
    kind = _INTEGERS[a.itemsize]
    return torch.equal(a.detach().view(kind), b.view(kind))
