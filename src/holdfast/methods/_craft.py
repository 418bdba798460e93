"""Crafting inside training."""

from dataclasses import fields, is_dataclass, replace
from math import inf
from typing import Any, cast

from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Loss, Rows, Watch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.rng import Rng


def warmed(attack: Attack, progress: float, warmup: float) -> Attack:
    """The attack with eps grown linearly from 0 over the first ``warmup`` share of training."""
    if progress >= warmup:
        return attack
    return attack.at(attack.threat.eps * progress / warmup)


def craft(attack: Attack, model: nn.Module, batch: Batch, rng: Rng, watch: Watch | None = None) -> Tensor:
    """Adversarial versions of the batch."""
    return attack(model, batch.x, Rows(batch.y, batch.index), rng=rng.fork("craft"), watch=watch)


def climbing(attack: Attack, loss: Loss, start: str) -> Attack:
    """The attack on another loss, from the start that this loss needs: methods with an inner problem of their own."""
    given: Any = attack
    choices = {field.name for field in fields(given)} if is_dataclass(given) else set()
    if not {"loss", "start"} <= choices:
        raise ValueError(
            f"{type(attack).__name__} has no choice of loss and start, but this method climbs a loss of its own; "
            "give it PGD or FGSM"
        )
    if getattr(given, "keep", "last") != "last":
        raise ValueError(
            f'keep is "{given.keep}" but it ranks points by whether they fool, and this method climbs a loss of its '
            'own; use keep="last"'
        )
    return cast(Attack, replace(given, loss=loss, start=start))


def climb(attack: Attack, model: nn.Module, batch: Batch, rows: Rows, rng: Rng, watch: Watch) -> Tensor:
    """Adversarial versions of the batch for a loss that compares two passes, crafted with full precision.

    The difference of two passes over nearly the same point drowns in the rounding of bfloat16.
    """
    with arithmetic("float32"):
        return attack(model, batch.x, rows, rng=rng.fork("craft"), watch=watch)


def passes(batch: Batch, times: int = 1) -> Cost:
    """The cost of passing the batch through the model and back so many times."""
    return Cost(times * len(batch), times * len(batch))


def check_crafting(attack: Attack, warmup: float) -> None:
    """Refuse what would train on the wrong points."""
    keep = getattr(attack, "keep", "last")
    if keep in ("fooled", "closest"):
        raise ValueError(f'training needs an attack with keep="last" or "worst"; keep="{keep}" stops at the boundary')
    check_warmup(warmup)


def check_warmup(warmup: float) -> None:
    """Refuse a share of training that is none."""
    if not 0 <= warmup <= 1:
        raise ValueError(f"warmup is {warmup} but it is a share of training in [0, 1]")


def check_weight(name: str, value: float) -> None:
    """Refuse the weight of a term that would reward what it is to prevent."""
    if not 0 <= value < inf:
        raise ValueError(f"{name} is {value} but the weight of a term is a finite number of zero or more")
