"""Batch norm by the statistics of another batch: noted in one pass, used again in others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.models.batch_norm import Averages, Statistics, given, own


class Noted(NamedTuple):
    """A batch norm, and the statistics of the batch that it saw."""

    norm: _BatchNorm
    statistics: Statistics


@contextmanager
def noting(model: nn.Module) -> Iterator[list[Noted]]:
    """In this context every batch norm in train mode notes what it normalizes by; all else is as always.

    A layer that runs twice keeps what it saw last. The running averages move as in any training pass.
    """
    notes: dict[_BatchNorm, Noted] = {}
    found: list[Noted] = []

    def noted(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            averages = _moving(norm)
            x = x.to(averages.mean.dtype)  # statistics keep their digits where x has fewer
            y, statistics = own(x, norm.weight, norm.bias, averages, norm.eps)
            notes[norm] = Noted(norm, statistics)
            return y

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
            centre, steepness = (tensor.detach() for tensor in note.statistics)
            note.norm.running_mean, note.norm.running_var = centre, steepness.pow(-2) - note.norm.eps
        with _forwards({note.norm: _reused(note) for note in notes}):
            yield
    finally:
        for norm, mean, variance in kept:
            norm.running_mean, norm.running_var = mean, variance


def _reused(note: Noted) -> Callable[[Tensor], Tensor]:
    # a function, not a partial: folding copies the model, and the note's tensors, which carry gradients, refuse that
    norm, statistics = note
    return lambda x: given(x.to(statistics.mean.dtype), norm.weight, norm.bias, statistics)


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


def _moving(norm: _BatchNorm) -> Averages:
    """The averages of a batch norm, as its training pass moves them."""
    count = cast(Tensor, norm.num_batches_tracked)
    count += 1
    share = 1 / float(count) if norm.momentum is None else norm.momentum
    return Averages(cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var), share)
