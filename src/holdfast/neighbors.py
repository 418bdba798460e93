"""Exact nearest-neighbor search in bounded memory."""

import torch
from torch import Tensor

from holdfast.geometry import to_double

_ENTRIES = 1 << 24  # of a block of distances: 64 MiB in float32


def neighbors(queries: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest ``points`` of each query: squared Euclidean distances and indices, both (q, k), nearest first.

    Equally near points are ordered by index. Candidates are searched in float32, and measured in float64 as sums of
    squared differences, until the rounding of the search cannot hide a nearer point. Memory grows with the sizes of
    the inputs and not with their product.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"k is {k} but there are {len(points)} points; it must lie from 1 to that number")
    if queries.ndim != 2 or points.ndim != 2 or queries.shape[1] != points.shape[1]:
        raise ValueError(f"queries {tuple(queries.shape)} and points {tuple(points.shape)} are not rows of one length")
    search = _Search(points, to_double(points).mean(0))
    found = [search.nearest(block, k) for block in torch.split(queries, max(1, _ENTRIES // len(points)))]
    distances, index = zip(*found, strict=True)  # an empty tensor splits into one empty block
    return torch.cat(distances), torch.cat(index)


class _Search:
    """Points moved to their centre and scaled to length one at most, so that float32 holds what tells them apart."""

    def __init__(self, points: Tensor, centre: Tensor) -> None:
        self.points, self.centre = points, centre
        moved = to_double(points) - centre
        self.scale = float(torch.linalg.vector_norm(moved, dim=1).max()) or 1.0
        self.scaled = (moved / self.scale).float()
        self.squares = self.scaled.square().sum(1)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Squared distances and indices of the k nearest points of a block of queries."""
        moved = ((to_double(queries) - self.centre) / self.scale).float()
        rough = torch.addmm(self.squares, moved, self.scaled.T, alpha=-2)  # the queries' own squares change no order
        length = torch.linalg.vector_norm(moved, dim=1)
        # a product of d numbers errs by d roundings of the lengths' product at most; 16 more cover all else
        error = (self.scaled.shape[1] + 16) * torch.finfo(rough.dtype).eps * (length + 1).square()
        return self._measured(queries, rough, length.square() - error, k, min(len(self.points), k + 8))

    def _measured(
        self, queries: Tensor, rough: Tensor, shift: Tensor, k: int, candidates: int
    ) -> tuple[Tensor, Tensor]:
        values, index = rough.topk(candidates, dim=1, largest=False)
        index = index.sort(1).values
        distance, order = self._distances(queries, index).sort(dim=1, stable=True)
        distance, index = distance[:, :k], index.gather(1, order)[:, :k]
        # not "<=": what float32 cannot hold became NaN
        unsure = ~(to_double(values[:, -1] + shift) * self.scale**2 > distance[:, -1])
        if candidates < len(self.points) and unsure.any():
            more = min(len(self.points), 8 * candidates)
            distance[unsure], index[unsure] = self._measured(queries[unsure], rough[unsure], shift[unsure], k, more)
        return distance, index

    def _distances(self, queries: Tensor, index: Tensor) -> Tensor:
        rows = torch.arange(len(queries), device=index.device).repeat_interleave(index.shape[1])
        size = max(1, _ENTRIES // 8 // self.points.shape[1])
        pairs = zip(torch.split(rows, size), torch.split(index.flatten(), size), strict=True)
        found = [(to_double(queries[i]) - to_double(self.points[j])).square().sum(1) for i, j in pairs]
        return torch.cat(found).reshape(index.shape)
