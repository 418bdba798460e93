"""What training methods share: crafting for a batch, the passes of a wrapped method, and checks of settings."""

from dataclasses import fields
from math import inf
from typing import Any, Literal, get_args, get_origin

from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Loss, Outputs, Rows, Start, Terms, Watch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.rng import Rng


def warmed(attack: Attack, progress: float, warmup: float) -> Attack:
    """The attack with eps growing linearly from 0 over the first ``warmup`` share of training."""
    if progress >= warmup:
        return attack
    return attack.at(attack.threat.eps * progress / warmup)


def craft(attack: Attack, model: nn.Module, batch: Batch, rng: Rng, watch: Watch | None = None) -> Tensor:
    """Adversarial versions of the batch."""
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


def check_crafting(attack: Attack, warmup: float) -> None:
    """Refuse attacks that stay at the decision boundary, and a bad warm-up."""
    if attack.keep in ("fooled", "closest"):
        raise ValueError(
            f'training needs an attack with keep="last" or "worst"; keep="{attack.keep}" stops at the boundary'
        )
    check_warmup(warmup)


def check_warmup(warmup: float) -> None:
    """Refuse a warm-up that is not a share of training."""
    if not 0 <= warmup <= 1:
        raise ValueError(f"warmup is {warmup} but it is a share of training in [0, 1]")


def check_weight(name: str, value: float) -> None:
    """Refuse a negative or infinite weight of a term."""
    if not 0 <= value < inf:
        raise ValueError(f"{name} is {value} but the weight of a term is a finite number of zero or more")


def check_choices(method: Any) -> None:
    """Refuse a value outside the Literal type of its dataclass field."""
    for field in fields(method):
        value, known = getattr(method, field.name), get_args(field.type)
        if get_origin(field.type) is Literal and value not in known:
            raise ValueError(f"{field.name} is {value!r} but it must be one of {', '.join(known)}")


def check_pool(pool: int) -> None:
    """Refuse a pool without samples."""
    if pool < 1:
        raise ValueError(f"pool is {pool} but negatives are drawn from a pool of at least one sample")
