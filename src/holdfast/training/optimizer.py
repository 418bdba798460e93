"""The optimizer of a recipe and its learning rate schedule, with torch's optimizers and schedulers."""

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from holdfast.contracts import Method
from holdfast.recipes.tables.train import OptimizerConfig, TrainConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module, method: Method) -> Optimizer:
    """The optimizer of the parameters of the model and the method, with weight decay on kernels only."""
    modules = [model, method] if isinstance(method, nn.Module) else [model]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("no parameter of the network has requires_grad, so there is nothing to train")
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    return (Adam if config.name == "adam" else AdamW)(groups, lr=config.lr, fused=True)


def check_schedule(config: TrainConfig, steps: int) -> None:
    """Refuse a one-cycle schedule that warms up for less than a step; ``steps`` is the number per epoch."""
    total, warmup = config.epochs * steps, config.schedule.warmup
    if config.schedule.name == "one_cycle" and warmup * total <= 1:
        raise ValueError(
            f"one_cycle rises over {warmup:g} of training, but that is at most one of {total} steps; "
            "train longer or raise schedule.warmup"
        )


def scheduled(config: TrainConfig, optimizer: Optimizer, steps: int, done: int) -> LRScheduler:
    """The scheduler after ``done`` steps, with the rate of the next step set; ``steps`` is the number per epoch.

    Rates depend only on the number of the step, so checkpoints need not store the scheduler.
    """
    total = config.epochs * steps
    scheduler: LRScheduler
    if config.schedule.name == "one_cycle":
        share = config.schedule.warmup
        scheduler = OneCycleLR(optimizer, config.optimizer.lr, total, pct_start=share, cycle_momentum=False)
    else:
        scheduler = LambdaLR(optimizer, lambda step: config.schedule.factor(step / steps, config.epochs))
    if 0 < done < total:
        # set the state to one step earlier and step once, which sets the rate and leaves the counters as if resumed
        scheduler.load_state_dict(scheduler.state_dict() | {"last_epoch": done - 1, "_step_count": done + 1})
        scheduler.step()
    return scheduler
