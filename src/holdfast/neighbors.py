"""Exact nearest-neighbor search in bounded memory, and the majority vote of the neighbors."""

import torch
from torch import Tensor

from holdfast.norms import to_double

_ENTRIES = 1 << 24  # distances computed at once: 64 MiB in float32


def neighbors(queries: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k nearest ``points`` of each query: squared Euclidean distances and indices, both (q, k), nearest first.

    Equally distant points are ordered by index. Candidates are found by a float32 matrix product and their distances
    computed in float64 as sums of squared differences; the number of candidates grows until rounding errors of the
    search cannot hide a nearer point. Memory grows with the sizes of the inputs, not with their product.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"k is {k} but there are {len(points)} points; it must lie from 1 to that number")
    if queries.ndim != 2 or points.ndim != 2 or queries.shape[1] != points.shape[1]:
        raise ValueError(f"queries {tuple(queries.shape)} and points {tuple(points.shape)} are not rows of one length")
    search = _Search(points, to_double(points).mean(0))
    found = [search.nearest(block, k) for block in torch.split(queries, max(1, _ENTRIES // len(points)))]
    distances, index = zip(*found, strict=True)  # never empty: torch splits an empty tensor into one empty block
    return torch.cat(distances), torch.cat(index)


class _Search:
    """Points centered on their mean and scaled to length at most one, to lose few digits in float32."""

    def __init__(self, points: Tensor, center: Tensor) -> None:
        self.points, self.center = points, center
        centered = to_double(points) - center
        self.scale = float(torch.linalg.vector_norm(centered, dim=1).max()) or 1.0
        self.scaled = (centered / self.scale).float()
        self.squares = self.scaled.square().sum(1)

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices of the k nearest points of a block of queries."""
        scaled = ((to_double(queries) - self.center) / self.scale).float()
        # squared distances up to the squared length of the query, which does not change the order
        partial = torch.addmm(self.squares, scaled, self.scaled.T, alpha=-2)
        length = torch.linalg.vector_norm(scaled, dim=1)
        # an inner product of d terms has at most d rounding errors of the product of the lengths; 16 cover the rest
        error = (self.scaled.shape[1] + 16) * torch.finfo(partial.dtype).eps * (length + 1).square()
        return self._refine(queries, partial, length.square() - error, k, min(len(self.points), k + 8))

    def _refine(
        self, queries: Tensor, partial: Tensor, shift: Tensor, k: int, candidates: int
    ) -> tuple[Tensor, Tensor]:
        """Compute exact distances of the candidates, with more of them where one left out could be nearer."""
        values, index = partial.topk(candidates, dim=1, largest=False)
        index = index.sort(1).values
        distance, order = self._distances(queries, index).sort(dim=1, stable=True)
        distance, index = distance[:, :k], index.gather(1, order)[:, :k]
        # "not greater" instead of "<=": values that overflow in float32 have become NaN
        unsure = ~(to_double(values[:, -1] + shift) * self.scale**2 > distance[:, -1])
        if candidates < len(self.points) and unsure.any():
            more = min(len(self.points), 8 * candidates)
            distance[unsure], index[unsure] = self._refine(queries[unsure], partial[unsure], shift[unsure], k, more)
        return distance, index

    def _distances(self, queries: Tensor, index: Tensor) -> Tensor:
        rows = torch.arange(len(queries), device=index.device).repeat_interleave(index.shape[1])
        size = max(1, _ENTRIES // 8 // self.points.shape[1])
        pairs = zip(torch.split(rows, size), torch.split(index.flatten(), size), strict=True)
        found = [(to_double(queries[i]) - to_double(self.points[j])).square().sum(1) for i, j in pairs]
        return torch.cat(found).reshape(index.shape)


def vote(labels: Tensor) -> Tensor:
    """Return the most frequent label of each row of (b, k) integer labels from 0; ties go to the smallest label."""
    counts = labels.new_zeros(len(labels), int(labels.max()) + 1 if labels.numel() else 1)
    return counts.scatter_add_(1, labels, torch.ones_like(labels)).argmax(1)
