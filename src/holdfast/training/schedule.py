"""The learning rate of every step, by torch's schedulers."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from holdfast.recipes.train import TrainConfig


def check_schedule(config: TrainConfig, steps: int) -> None:
    """Refuse a cycle whose rise is not even a step, which torch cannot compute; ``steps`` are those of an epoch."""
    total, warmup = config.epochs * steps, config.schedule.warmup
    if config.schedule.name == "one_cycle" and warmup * total <= 1:
        raise ValueError(
            f"one_cycle rises over {warmup:g} of training, but that is at most one of {total} steps; "
            "train longer or raise schedule.warmup"
        )


def scheduled(config: TrainConfig, optimizer: Optimizer, steps: int, done: int) -> LRScheduler:
    """The scheduler after so many steps: it has set the rate of the next one, and ``step()`` sets those that follow.

    Rates depend on the number of the step alone, so nothing of it is stored.
    """
    total = config.epochs * steps
    scheduler = _fresh(config, optimizer, steps, total)
    if 0 < done < total:
        # one step short, then a step: as if it had been there all along, which is also what its counter says
        scheduler.load_state_dict(scheduler.state_dict() | {"last_epoch": done - 1, "_step_count": done + 1})
        scheduler.step()
    return scheduler


def _fresh(config: TrainConfig, optimizer: Optimizer, steps: int, total: int) -> LRScheduler:
    if config.schedule.name == "one_cycle":
        share = config.schedule.warmup
        return OneCycleLR(optimizer, config.optimizer.lr, total, pct_start=share, cycle_momentum=False)
    return LambdaLR(optimizer, lambda step: config.schedule.factor(step / steps, config.epochs))
