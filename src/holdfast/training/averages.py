"""Weight averaging with torch's ``AveragedModel``: the average is validated, saved and evaluated."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from holdfast.contracts import Cost
from holdfast.recipes.tables.train import TrainConfig
from holdfast.training.batches import Batches


class Average:
    """The moving average (EMA) or mean (SWA) of the weights that a config asks for, or the network itself."""

    def __init__(self, config: TrainConfig, net: nn.Module, batches: Batches) -> None:
        self.config, self.net, self.batches = config, net, batches
        self.model: AveragedModel | None = None
        if config.ema is not None:
            moving = get_ema_multi_avg_fn(config.ema.decay)  # type: ignore[no-untyped-call]
            self.model = AveragedModel(net, multi_avg_fn=moving, use_buffers=True)
        elif config.swa is not None:
            self.model = AveragedModel(net)

    @property
    def current(self) -> nn.Module:
        """The network with the averaged weights; the trained network itself until something was averaged."""
        return self.net if self.model is None or not self.model.n_averaged else self.model.module

    def after_step(self) -> None:
        """Update the moving average with the weights after a step."""
        if self.config.ema is not None and self.model is not None:
            self.model.update_parameters(self.net)

    def after_epoch(self, epoch: int) -> Cost:
        """Update the mean with the weights after an epoch and recompute its batch norm statistics."""
        if self.config.swa is None or self.model is None or epoch <= self.config.skipped_epochs:
            return Cost()
        self.model.update_parameters(self.net)
        sizes: list[int] = []
        copy = deepcopy(self.model.module)  # a pass in train mode may change weights too, e.g. in projecting heads
        update_bn(self._images(epoch - 1, sizes), copy)
        with torch.no_grad():
            for old, new in zip(self.model.module.buffers(), copy.buffers(), strict=True):
                old.copy_(new)
        return Cost(forwards=sum(sizes))

    def _images(self, epoch: int, sizes: list[int]) -> Iterator[Tensor]:
        """The clean images of an epoch, augmented as in training, batch by batch; adds the size of each to a list."""
        order = self.batches.order
        for step, which in enumerate(order.epoch(epoch), start=epoch * order.steps):
            sizes.append(len(which))
            yield self.batches.images(step, which)
