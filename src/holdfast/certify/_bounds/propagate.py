"""Bounds of the nodes of a network over a region: interval arithmetic and CROWN's linear bounds (Zhang et al. 2018)."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import torch
from torch import Tensor

from holdfast.certify._bounds import operations as ops
from holdfast.certify._bounds.interval import Interval, rounding
from holdfast.certify._bounds.network import Network
from holdfast.certify._bounds.region import Region, Signed

Intermediate = Literal["crown", "ibp"]
_ENTRIES = 1 << 19  # coefficients held at once: 4 MiB in float64; more do not stay in the caches

Choices = Mapping[int, Tensor]
"""By activation, what decides its lower line: (b, 1 or k, ...) numbers in [0, 1]."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Intervals of all nodes over a region, from which bounds of linear functions of a node are derived.

    The inputs of activations and of max pooling are bounded by interval arithmetic and, if ``intermediate`` is
    ``crown``, also by linear bounds; the tighter of each two counts.
    """

    network: Network
    region: Region
    intermediate: Intermediate = "crown"
    intervals: dict[int, Interval] = field(init=False)
    errors: dict[int, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "intervals", {0: self.region.interval})
        object.__setattr__(self, "errors", {})
        wanted = self.network.bent_inputs()
        if self.intermediate == "ibp":
            wanted &= self.network.affine()  # of which linear bounds are exact, and intervals would not be in l2
        for index in self.network.nodes:
            self.intervals[index] = self._arithmetic(index)
            if index in wanted:
                self.intervals[index] = self.intervals[index].tightened(self._linear(index))

    def _arithmetic(self, index: int) -> Interval:
        """The interval of a node from those of its inputs; stores the bound of its rounding errors."""
        node = self.network.nodes[index]
        given, operation = [self.intervals[i] for i in node.inputs], node.operation
        if isinstance(operation, ops.Add):
            low, high = (operation.apply(*bounds) for bounds in zip(*given, strict=True))
            error = rounding(1, given[0].size + given[1].size)
        elif isinstance(operation, ops.Affine):
            center, radius = operation.apply(given[0].center), operation.spread(given[0].radius)
            low, high = center - radius, center + radius
            error = rounding(operation.terms, operation.spread(given[0].size) + operation.shift_size)
        else:
            low, high = (operation.apply(bound) for bound in given[0])
            error = operation.error(given[0].size) if isinstance(operation, ops.Activation) else torch.zeros_like(low)
        self.errors[index] = error
        return Interval(low - error, high + error)

    def _linear(self, index: int) -> Interval:
        """Linear bounds of every number of a node, some of them at a time."""
        shape, like = self.network.shape(index), self.region.x
        size = prod(shape)
        rows = max(1, _ENTRIES // (2 * self._width(index) * len(like)))
        found = []
        for part in torch.split(torch.arange(size, device=like.device), rows):
            spec = like.new_zeros(2, len(part), size)
            spec[0, torch.arange(len(part)), part], spec[1, torch.arange(len(part)), part] = 1, -1
            lower = self.lower(index, spec.reshape(1, 2 * len(part), *shape))
            found.append(lower.reshape(-1, 2, len(part)))
        low, high = torch.cat(found, 2).unbind(1)
        return Interval(low.reshape(-1, *shape), -high.reshape(-1, *shape))

    def _width(self, index: int) -> int:
        shapes = [self.region.x.shape[1:], *(self.network.shape(i) for i in range(1, index + 1))]
        return max(map(prod, shapes))

    def take(self, which: slice) -> "Bounds":
        """Select samples."""
        found = copy(self)
        object.__setattr__(found, "region", self.region.take(which))
        object.__setattr__(
            found, "intervals", {i: Interval(*(b[which] for b in it)) for i, it in self.intervals.items()}
        )
        object.__setattr__(found, "errors", {i: error[which] for i, error in self.errors.items()})
        return found

    def lower(self, index: int, spec: Tensor, choices: Choices | None = None) -> Tensor:
        """Lower bounds (b, k) of the products of ``spec`` (1 or b, k, ...) with a node, the best of all there are."""
        best, *others = self._lower(index, spec, choices)
        for other in others:
            best = torch.maximum(best, other)
        return best

    def quick_lower(self, index: int, spec: Tensor) -> Tensor:
        """Lower bounds by the intervals of an earlier node alone, as in IBP."""
        return next(self._lower(index, spec, None))

    def _lower(self, index: int, spec: Tensor, choices: Choices | None) -> Iterator[Tensor]:
        """Lower bounds of products, which are expressed by ever earlier nodes, down to the input.

        Wherever they depend on a single node, its interval gives a bound.
        """
        constant, coefficients = self.region.x.new_zeros(()), {index: spec}
        for node in range(index, -1, -1):
            a = coefficients.pop(node, None)
            if a is None:
                continue
            parts = Signed.of(a)
            if node == 0:
                yield constant + self.region.lower(parts)
                continue
            if not coefficients and node != index:
                yield constant + parts.least(*self.intervals[node])
            pieces, rest = self._substitute(node, parts, choices)
            constant = constant + rest
            for source, piece in pieces:
                coefficients[source] = coefficients[source] + piece if source in coefficients else piece

    def _substitute(self, index: int, a: Signed, choices: Choices | None) -> tuple[list[tuple[int, Tensor]], Tensor]:
        """Lower bounds a·y >= pieces·inputs + rest of products with a node y by products with its inputs."""
        node, error = self.network.nodes[index], self.errors[index]
        operation, source = node.operation, node.inputs[0]
        if isinstance(operation, ops.Add):
            return [(i, a.whole) for i in node.inputs], a.least(-error, error)
        if isinstance(operation, ops.Affine):
            pulled = operation.pull(a.whole.flatten(0, 1))
            pulled = pulled.reshape(*a.whole.shape[:2], *pulled.shape[1:])
            return [(source, pulled)], a.least(operation.shift - error, operation.shift + error)
        if isinstance(operation, ops.MaxPool):
            position, known, most = operation.lines(self.intervals[source])
            linear = a.up + torch.where(known[:, None], a.down, 0.0)
            rest = a.least(torch.zeros_like(most), torch.where(known, 0.0, most))
            return [(source, operation.pull(linear, position))], rest
        of = self.intervals[source]
        choice = operation.start(of)[:, None] if choices is None else choices[index]
        lines = operation.lines(Interval(of.low[:, None], of.high[:, None]), choice)
        low, high = lines.low_shift - error[:, None], lines.high_shift + error[:, None]
        alike = low.shape[1] == 1  # for all rows
        rest = a.least(low[:, 0], high[:, 0]) if alike else (a.up * low + a.down * high).flatten(2).sum(2)
        return [(source, a.up * lines.low + a.down * lines.high)], rest
