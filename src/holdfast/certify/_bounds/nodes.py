"""The nodes of a network: operations and which nodes they read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.certify._bounds import operations as ops


@dataclass(frozen=True, eq=False)
class Node:
    """An operation, the numbers of the nodes it reads, and the shape of its output without the batch axis."""

    operation: ops.Operation
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Ref:
    """A value that depends on the input of the network: the number of its node."""

    index: int


class UnknownError(Exception):
    """Raised for an operation that cannot be bounded; the text says why, if that is not plain."""


class Nodes:
    """The nodes so far, and the shapes of their outputs without the batch axis; 0 is the input."""

    def __init__(self, example: Tensor) -> None:
        self.like = example.new_zeros(())
        self.found: dict[int, Node] = {}
        self.shapes = {0: tuple(example.shape[1:])}

    def zeros(self, ref: Ref) -> Tensor:
        """Two inputs of zeros for a node that reads ``ref``."""
        return self.like.new_zeros(2, *self.shapes[ref.index])

    def add(self, operation: ops.Operation, *inputs: Ref) -> Ref:
        """Append a node."""
        index = len(self.found) + 1
        out = operation.apply(*map(self.zeros, inputs))
        if len(out) != 2:
            raise UnknownError("it mixes samples")
        self.shapes[index] = tuple(out.shape[1:])
        self.found[index] = Node(operation, tuple(ref.index for ref in inputs), self.shapes[index])
        return Ref(index)

    def linear(self, x: Ref, function: Callable[[Tensor], Tensor], terms: float) -> Ref:
        """Append a linear function whose coefficients have one sign, which must not be negative."""
        if (function(self.zeros(x) + 1) < 0).any():
            raise UnknownError("its coefficients are negative")
        return self.add(ops.Average(function, self.shapes[x.index], terms, self.like), x)

    def scale(self, x: Ref, factor: Any, shift: Any, terms: float) -> Ref:
        """Append factor · x + shift; tensors broadcast to the samples."""
        shape = (1, *self.shapes[x.index])
        parts = [torch.as_tensor(part, dtype=torch.float64, device=self.like.device) for part in (factor, shift)]
        wide, moved = (part.expand(shape)[0] for part in parts)
        return self.add(ops.Scale(wide, moved, moved.abs(), terms), x)
