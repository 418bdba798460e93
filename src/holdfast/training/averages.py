"""Averages of the weights over training, by torch's own: what is validated, kept and judged instead of the weights."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from holdfast.contracts import Cost
from holdfast.recipes.train import TrainConfig
from holdfast.training.batches import Batches


class Average:
    """The average that a config asks for, if it asks for one; else the network itself."""

    def __init__(self, config: TrainConfig, net: nn.Module, batches: Batches) -> None:
        self.config, self.net, self.batches = config, net, batches
        self.model = _model(config, net)

    @property
    def kept(self) -> nn.Module:
        """The network with the weights that count now; before anything was averaged, as it is."""
        return self.net if self.model is None or not self.model.n_averaged else self.model.module

    def after_step(self) -> None:
        """Take the weights after a step into a moving average."""
        if self.config.ema is not None and self.model is not None:
            self.model.update_parameters(self.net)

    def after_epoch(self, epoch: int) -> Cost:
        """Take the weights after an epoch into the mean, and give it the statistics of batch norm that fit it."""
        if self.config.swa is None or self.model is None or epoch <= self.config.passed_over:
            return Cost()
        self.model.update_parameters(self.net)
        images = _Counted(self.batches, epoch)
        measured = deepcopy(self.model.module)  # a pass in train mode may change weights too, as projecting heads do
        update_bn(images, measured)
        with torch.no_grad():
            for old, new in zip(self.model.module.buffers(), measured.buffers(), strict=True):
                old.copy_(new)
        return Cost(forwards=images.seen)


def _model(config: TrainConfig, net: nn.Module) -> AveragedModel | None:
    if config.ema is not None:
        moving = get_ema_multi_avg_fn(config.ema.decay)  # type: ignore[no-untyped-call]
        return AveragedModel(net, multi_avg_fn=moving, use_buffers=True)
    return None if config.swa is None else AveragedModel(net)


class _Counted:
    """The clean images of an epoch as it saw them, batch by batch; it knows how many were asked for."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self.batches, self.epoch, self.seen = batches, epoch - 1, 0

    def __iter__(self) -> Iterator[Tensor]:
        order = self.batches.order
        for step, which in enumerate(order.epoch(self.epoch), start=self.epoch * order.steps):
            self.seen += len(which)
            yield self.batches.images(step, which)
