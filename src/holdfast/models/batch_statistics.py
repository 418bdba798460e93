"""Which statistics batch norm normalizes by: those of another batch, recorded and reused, or those of every batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.models.batch_norm import RunningStatistics, Statistics, normalize_batch, normalize_with


class RecordedStatistics(NamedTuple):
    """A batch norm layer and the statistics of the batch it has processed."""

    norm: _BatchNorm
    statistics: Statistics


@contextmanager
def record_batch_statistics(model: nn.Module) -> Iterator[list[RecordedStatistics]]:
    """Record the batch statistics of every batch norm in train mode; the list is filled when the context exits.

    A layer that runs twice keeps its last statistics. Running statistics are updated as in any training pass.
    """
    latest: dict[_BatchNorm, RecordedStatistics] = {}
    recorded: list[RecordedStatistics] = []

    def recording(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            running = _updated_running(norm)
            x = x.to(running.mean.dtype)  # statistics of half-precision inputs are computed in float32
            y, statistics = normalize_batch(x, norm.weight, norm.bias, running, norm.eps)
            latest[norm] = RecordedStatistics(norm, statistics)
            return y

        return forward

    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    with _replaced_forwards({norm: recording(norm) for norm in norms}):
        yield recorded
        recorded.extend(latest.values())


@contextmanager
def reuse_batch_statistics(recorded: list[RecordedStatistics]) -> Iterator[None]:
    """Normalize by recorded statistics, in train and eval mode, without updating the running statistics.

    The running statistics are replaced as well, because the folded model that attacks use reads them. Everything is
    restored on exit.
    """
    saved = [(one.norm, one.norm.running_mean, one.norm.running_var) for one in recorded]
    try:
        for one in recorded:
            mean, inverse_std = (tensor.detach() for tensor in one.statistics)
            one.norm.running_mean, one.norm.running_var = mean, inverse_std.pow(-2) - one.norm.eps
        with _replaced_forwards({one.norm: _forward_with(one) for one in recorded}):
            yield
    finally:
        for norm, running_mean, running_var in saved:
            norm.running_mean, norm.running_var = running_mean, running_var


@contextmanager
def train_mode_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize as in train mode, also in eval mode: by the statistics of each batch, updating the running ones."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    with _replaced_forwards({norm: _forward_by_batch(norm) for norm in norms}):
        yield


def _forward_by_batch(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        mean, variance, momentum = _updated_running(norm) if norm.track_running_stats else (None, None, 0.0)
        return batch_norm(x, mean, variance, norm.weight, norm.bias, True, momentum, norm.eps)

    return forward


def _forward_with(recorded: RecordedStatistics) -> Callable[[Tensor], Tensor]:
    # a closure, not a partial: folding deep-copies the model, and tensors that carry gradients cannot be copied
    norm, statistics = recorded
    return lambda x: normalize_with(x.to(statistics.mean.dtype), norm.weight, norm.bias, statistics)


@contextmanager
def _replaced_forwards(replaced: dict[_BatchNorm, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the forward methods; a hook would run the original pass as well and prevent folding."""
    try:
        for norm, forward in replaced.items():
            vars(norm)["forward"] = forward
        yield
    finally:
        for norm in replaced:
            vars(norm).pop("forward", None)


def _updated_running(norm: _BatchNorm) -> RunningStatistics:
    """Count a batch and return the running statistics with the momentum of their update."""
    count = cast(Tensor, norm.num_batches_tracked)
    count += 1
    momentum = 1 / float(count) if norm.momentum is None else norm.momentum
    return RunningStatistics(cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var), momentum)
