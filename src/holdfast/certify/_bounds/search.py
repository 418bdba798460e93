"""The largest radius that bounds prove, of many samples at once."""

from collections.abc import Callable

import torch
from torch import Tensor

Proof = Callable[[Tensor, Tensor], Tensor]
"""Called with positions of samples and a radius for each; returns lower bounds of their margins, positive if proved."""

_ROUNDS = 60


def largest(proof: Proof, margin: Tensor, first: Tensor, most: float, tolerance: float) -> Tensor:
    """The largest radius (b,) found to be proved, within ``tolerance`` of the smallest not proved; inf beyond most.

    ``margin`` are the margins at radius 0 and ``first`` the radii to try first. Each sample is searched by itself,
    by the Illinois variant of the false position method (Dowell and Jarratt 1971): every radius that is returned
    was itself proved.
    """
    low, low_margin = torch.zeros_like(margin), margin.clone()
    high, high_margin = torch.full_like(margin, torch.inf), torch.full_like(margin, -torch.inf)
    trial, last = first.clamp_max(most), torch.zeros_like(margin)
    open_ = (margin > 0).nonzero().squeeze(1)
    for _ in range(_ROUNDS):
        if not len(open_):
            break
        found = proof(open_, trial[open_])
        proved, again = found > 0, (found > 0) == (last[open_] > 0)
        last[open_] = torch.where(proved, 1.0, -1.0).to(last)
        yes, no = open_[proved], open_[~proved]
        low[yes], low_margin[yes] = trial[yes], found[proved]
        high[no], high_margin[no] = trial[no], found[~proved]
        high_margin[open_[proved & again]] /= 2
        low_margin[open_[~proved & again]] /= 2
        trial[open_] = _next(low[open_], low_margin[open_], high[open_], high_margin[open_], most, tolerance)
        open_ = open_[(low[open_] < most) & (low[open_] < (1 - tolerance) * high[open_])]
    return torch.where(low >= most, torch.inf, low)


def _next(low: Tensor, low_margin: Tensor, high: Tensor, high_margin: Tensor, most: float, tolerance: float) -> Tensor:
    """Just below where the line between the two ends is zero, but not too near to one of them; twice without an end.

    Bounds are often linear between the ends. At the zero itself rounding would decide whether a radius is proved, and
    with it the samples beside it in a batch; a quarter of the tolerance below, it does not.
    """
    edge = (tolerance / 2 * high / (high - low)).clamp(0.02, 0.5)
    share = low_margin / (low_margin - high_margin) - edge / 2
    share = share.nan_to_num(0.5).clamp(edge, 1 - edge)
    return torch.where(high.isinf(), (2 * low).clamp_max(most), low + share * (high - low).nan_to_num(0.0))


def tried(proof: Proof, margin: Tensor, radii: list[float]) -> Tensor:
    """The largest of some radii that is proved, (b,), 0 if none is; they are tried in increasing order."""
    radius = torch.zeros_like(margin)
    open_ = (margin > 0).nonzero().squeeze(1)
    for value in sorted(radii):
        if len(open_):
            open_ = open_[proof(open_, torch.full_like(margin[open_], value)) > 0]
            radius[open_] = value
    return radius
