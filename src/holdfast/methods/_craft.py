"""What training methods share: crafting for a batch, the passes of a wrapped method, and checks of settings."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Loss, Outputs, Rows, Start, Terms, Watch
from holdfast.crafting import using
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.microbatch import micro
from holdfast.crafting.view import check_accepts
from holdfast.models.batch_statistics import train_mode_statistics
from holdfast.rng import Rng
from holdfast.settings import check_types


def warmed(attack: Attack, progress: float, warmup: float) -> Attack:
    """The attack with eps growing linearly from 0 over the first ``warmup`` share of training."""
    if progress >= warmup:
        return attack
    return attack.at(attack.threat.eps * progress / warmup)


def craft(
    attack: Attack,
    model: nn.Module,
    batch: Batch,
    rng: Rng,
    watch: Watch | None = None,
    *,
    batch_statistics: bool = False,
) -> Tensor:
    """Adversarial versions of the batch.

    With ``batch_statistics`` batch norm runs as in train mode: each pass of the attack normalizes by the statistics of
    the whole batch as it is then, and updates the running statistics. The attack calls the model itself.
    """
    with ExitStack() as stack:
        if batch_statistics:
            for context in (using("module"), micro(len(batch)), train_mode_statistics(model)):
                stack.enter_context(context)
        return attack(model, batch.x, Rows(batch.y, batch.index), rng=rng.fork("craft"), watch=watch)


def climbing(attack: Attack, loss: Loss, start: Start) -> Attack:
    """The attack on the loss of the method's inner maximization, from the start that this loss needs."""
    changed = attack.with_loss(loss, start)
    if attack.keep != "last":
        raise ValueError(
            f'keep is "{attack.keep}" but it ranks points by whether they fool, and this method climbs a loss of its '
            'own; use keep="last"'
        )
    return changed


def climb(attack: Attack, model: nn.Module, batch: Batch, rows: Rows, rng: Rng, watch: Watch) -> Tensor:
    """Adversarial versions of the batch for a loss that compares two forward passes, crafted in float32.

    The difference of two passes over nearly equal points is smaller than the rounding error of bfloat16.
    """
    with arithmetic("float32"):
        return attack(model, batch.x, rows, rng=rng.fork("craft"), watch=watch)


def passes(batch: Batch, times: int = 1) -> Cost:
    """The cost of ``times`` forward and backward passes over the batch."""
    return Cost(times * len(batch), times * len(batch))


def training_passes(terms: Terms) -> tuple[Outputs, ...]:
    """The training passes of the wrapped method; the adversarial one is last if there is one."""
    if not terms.seen:
        raise ValueError(
            "the wrapped method does not return its training passes, so no metric term can be added; "
            "pass them to its Terms as `seen`"
        )
    return terms.seen


def check_settings(method: Any, *weights: str) -> None:
    """Refuse settings of another type, and values that cannot be right.

    ``weights`` are the names of settings that weight a term. ``smoothing``, ``attack``, ``warmup``, ``pool`` and
    ``margin`` mean the same in every method and are checked where a method has them.
    """
    check_types(method)
    for name, check in _CHECKS.items():
        if hasattr(method, name):
            check(getattr(method, name))
    for name in weights:
        _check_weight(name, getattr(method, name))


def _check_attack(attack: Attack) -> None:
    """Refuse attacks that stay at the decision boundary."""
    if attack.keep in ("fooled", "closest"):
        raise ValueError(
            f'training needs an attack with keep="last" or "worst"; keep="{attack.keep}" stops at the boundary'
        )


def _check_warmup(warmup: float) -> None:
    """Refuse a warm-up that is not a share of training."""
    if not 0 <= warmup <= 1:
        raise ValueError(f"warmup is {warmup} but it is a share of training in [0, 1]")


def _check_weight(name: str, value: float) -> None:
    """Refuse a negative or infinite weight of a term."""
    if not 0 <= value < inf:
        raise ValueError(f"{name} is {value} but the weight of a term is a finite number of zero or more")


def _check_smoothing(value: float) -> None:
    """Refuse label smoothing that is not a share of the probability."""
    if not 0 <= value < 1:
        raise ValueError(
            f"smoothing is {value} but it is the share of probability that the label gives away, in [0, 1)"
        )


def check_margin(value: float, name: str = "margin") -> None:
    """Refuse a margin that is not finite."""
    if not isfinite(value):
        raise ValueError(f"{name} is {value} but a margin is a finite number")


def _check_pool(pool: int) -> None:
    """Refuse a pool without samples."""
    if pool < 1:
        raise ValueError(f"pool is {pool} but negatives are drawn from a pool of at least one sample")


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "smoothing": _check_smoothing,
    "attack": _check_attack,
    "warmup": _check_warmup,
    "pool": _check_pool,
    "margin": check_margin,
}


def checked(call: Callable[..., Terms]) -> Callable[..., Terms]:
    """The call of a method, which refuses bad arguments and inputs that the model cannot take, in one sentence."""

    @wraps(call)
    def described(self: Any, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        _check_arguments(model, batch, progress, rng)
        try:
            terms = call(self, model, batch, progress=progress, rng=rng)
        except RuntimeError:
            check_accepts(model, batch.x)
            raise
        if not terms.total.isfinite() and not batch.x.isfinite().all():
            raise ValueError("x holds NaN or infinite values; clean the data before training")
        return terms

    return described


def _check_arguments(model: Any, batch: Any, progress: Any, rng: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__} but a method trains a torch.nn.Module")
    if not isinstance(batch, Batch):
        raise ValueError(f"the batch is a {type(batch).__name__} but must be a Batch; holdfast.batches gives them")
    if not batch.x.is_floating_point() or batch.y.dtype != torch.int64 or batch.y.ndim != 1:
        raise ValueError(
            f"a batch of x of type {batch.x.dtype} and y of type {batch.y.dtype} and shape {tuple(batch.y.shape)} is "
            "given but floating point in [0, 1] and class indices (b,) of type int64 are needed"
        )
    if not isinstance(progress, int | float) or not 0 <= progress <= 1:
        raise ValueError(f"progress is {progress!r} but it is the share of training that is done, in [0, 1]")
    if not hasattr(rng, "fork"):
        raise ValueError(f"rng is {rng!r} but must be an Rng; write rng=Rng(0).fork(step)")
