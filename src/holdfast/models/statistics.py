"""Batch norm by the statistics of another batch: noted in one pass, used again in others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Noted(NamedTuple):
    """A batch norm, and the mean and variance of the batch that it saw; both carry gradients."""

    norm: _BatchNorm
    mean: Tensor
    variance: Tensor


@contextmanager
def noting(model: nn.Module) -> Iterator[list[Noted]]:
    """In this context every batch norm in train mode notes what it normalizes by; all else is as always.

    A layer that runs twice keeps what it saw last. The running averages move as in any training pass.
    """
    notes: dict[_BatchNorm, Noted] = {}
    found: list[Noted] = []

    def noted(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            x = x.to(cast(Tensor, norm.running_mean).dtype)  # statistics keep their digits where x has fewer
            variance, mean = torch.var_mean(x, _axes(x), correction=0)
            notes[norm] = Noted(norm, mean, variance)
            _move_averages(norm, x, mean.detach(), variance.detach())
            return _normalized(notes[norm], x)

        return forward

    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    with _forwards({norm: noted(norm) for norm in norms}):
        yield found
        found.extend(notes.values())


@contextmanager
def reusing(notes: list[Noted]) -> Iterator[None]:
    """In this context these batch norms normalize by what was noted, in train and eval mode, and learn nothing.

    The running averages are replaced too, for the folded form of the model, which reads them; all is put back.
    """
    kept = [(note.norm, note.norm.running_mean, note.norm.running_var) for note in notes]
    try:
        for note in notes:
            note.norm.running_mean, note.norm.running_var = note.mean.detach(), note.variance.detach()
        with _forwards({note.norm: _reused(note) for note in notes}):
            yield
    finally:
        for norm, mean, variance in kept:
            norm.running_mean, norm.running_var = mean, variance


def _reused(note: Noted) -> Callable[[Tensor], Tensor]:
    # a function, not a partial: folding copies the model, and the note's tensors, which carry gradients, refuse that
    return lambda x: _normalized(note, x)


@contextmanager
def _forwards(replaced: dict[_BatchNorm, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Other forward functions for these modules; a hook would cost the pass it replaces, and keep folding away."""
    try:
        for norm, forward in replaced.items():
            vars(norm)["forward"] = forward
        yield
    finally:
        for norm in replaced:
            vars(norm).pop("forward", None)


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _normalized(note: Noted, x: Tensor) -> Tensor:
    """One product and one sum over the map; torch's own function knows no gradient for given statistics."""
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    scale = torch.rsqrt(note.variance + note.norm.eps)
    scale = scale if note.norm.weight is None else scale * note.norm.weight
    shift = -note.mean * scale
    shift = shift if note.norm.bias is None else shift + note.norm.bias
    return torch.addcmul(shift.reshape(shape), x, scale.reshape(shape))


@torch.no_grad()
def _move_averages(norm: _BatchNorm, x: Tensor, mean: Tensor, variance: Tensor) -> None:
    """What torch's batch norm does to its averages in a training pass."""
    count = cast(Tensor, norm.num_batches_tracked)
    count += 1
    share = 1 / float(count) if norm.momentum is None else norm.momentum
    n = x.numel() // x.shape[1]
    cast(Tensor, norm.running_mean).lerp_(mean, share)
    cast(Tensor, norm.running_var).lerp_(variance * n / max(1, n - 1), share)
