"""The pair of features with the largest saliency, without a table of all pairs."""

import torch
from torch import Tensor

_AT_ONCE = 1 << 22  # scores of pairs in memory at a time


def best_pairs(gain: Tensor, fall: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features p, q, (b, 2), that maximize (gain_p + gain_q)·(fall_p + fall_q), and whether there are any.

    Both sums must be positive. ``gain`` and ``fall`` are (b, d); features with -inf in both are left out. Where both
    sums are positive the score grows with every entry, so a feature dominated by two others can be replaced by one of
    them: the best pair is in the first two Pareto layers, which hold tens of features where d is thousands.
    """
    gain, fall = _scaled(gain), _scaled(fall)
    candidates, filled = _two_layers(gain, fall)
    a, b = (torch.where(filled, part.gather(1, candidates), -torch.inf) for part in (gain, fall))
    count = candidates.shape[1]
    best, place = torch.zeros_like(gain[:, 0]), torch.zeros(len(gain), dtype=torch.int64, device=gain.device)
    rows = max(1, _AT_ONCE // max(1, len(gain) * count))
    for start in range(0, count, rows):
        found, where = _best_of_rows(a, b, start, min(start + rows, count)).max(1)
        place = torch.where(found > best, where + start * count, place)
        best = torch.maximum(found, best)
    if not count:
        return place[:, None].expand(-1, 2), best > 0
    return candidates.gather(1, torch.stack([place // count, place % count], 1)), best > 0


def _scaled(values: Tensor) -> Tensor:
    """Scale by a power of two, which is exact, so that products of very small or large gradients stay in range."""
    peak = torch.where(values.isinf(), 0.0, values).abs().amax(1, keepdim=True)
    return torch.ldexp(values, -torch.frexp(peak).exponent.clamp(-100, 100))


def _two_layers(gain: Tensor, fall: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features in the first two Pareto layers, (b, count), and which entries are not padding.

    Of features with equal gain some that are dominated may be kept, which costs time but no exactness.
    """
    order = gain.argsort(dim=1, descending=True)
    b = fall.gather(1, order)
    first = _records(b)
    kept = first | _records(torch.where(first, -torch.inf, b))
    sizes = kept.sum(1)
    count = int(sizes.max()) if len(sizes) else 0
    sample, column = kept.nonzero(as_tuple=True)
    candidates = torch.zeros(len(gain), count, dtype=torch.int64, device=gain.device)
    candidates[sample, kept.cumsum(1)[sample, column] - 1] = order[sample, column]
    return candidates, torch.arange(count, device=gain.device) < sizes[:, None]


def _records(values: Tensor) -> Tensor:
    """Return a mask of the entries above all earlier ones of their row."""
    before = values.cummax(1).values.roll(1, 1)
    before[:, :1] = -torch.inf
    return values > before


def _best_of_rows(a: Tensor, b: Tensor, start: int, stop: int) -> Tensor:
    """Return the scores of the pairs whose first feature is in [start, stop), flat, and zero where they have none."""
    total_a, total_b = (part[:, start:stop, None] + part[:, None] for part in (a, b))
    later = torch.ones(stop - start, a.shape[1], dtype=torch.bool, device=a.device).triu(start + 1)
    return torch.where((total_a > 0) & (total_b > 0) & later, total_a * total_b, 0.0).flatten(1)
