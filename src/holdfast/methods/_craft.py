"""Crafting inside training."""

from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Rows, Watch
from holdfast.rng import Rng


def warmed(attack: Attack, progress: float, warmup: float) -> Attack:
    """The attack with eps grown linearly from 0 over the first ``warmup`` share of training."""
    if progress >= warmup:
        return attack
    return attack.at(attack.threat.eps * progress / warmup)


def craft(attack: Attack, model: nn.Module, batch: Batch, rng: Rng, watch: Watch | None = None) -> Tensor:
    """Adversarial versions of the batch."""
    return attack(model, batch.x, Rows(batch.y, batch.index), rng=rng.fork("craft"), watch=watch)


def passes(batch: Batch, times: int = 1) -> Cost:
    """The cost of passing the batch through the model and back so many times."""
    return Cost(times * len(batch), times * len(batch))


def check_crafting(attack: Attack, warmup: float) -> None:
    """Refuse what would train on the wrong points."""
    keep = getattr(attack, "keep", "last")
    if keep in ("fooled", "closest"):
        raise ValueError(f'training needs an attack with keep="last" or "worst"; keep="{keep}" stops at the boundary')
    if not 0 <= warmup <= 1:
        raise ValueError(f"warmup is {warmup} but it is a share of training in [0, 1]")
