"""From the plans of a recipe to the things they name: data, models, optimizers, batches."""

import inspect
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from holdfast import data
from holdfast.contracts import Batch, Method, Needs
from holdfast.data import DataSet, Order, Pool, Positives, Split
from holdfast.data.augment import Augment
from holdfast.models.classifier import Classifier, Normalize, PerImage
from holdfast.rng import Rng
from holdfast.run import find
from holdfast.run.config import DataPlan, OptimizerPlan
from holdfast.run.model import ModelPlan

_NO_AUGMENT = Augment()


def load_data(plan: DataPlan, folder: Path | None) -> DataSet:
    """The data set of a recipe."""
    return data.load(plan.name, folder, valid=plan.valid, seed=plan.seed, verify=plan.verify)


def build_model(plan: ModelPlan, shape: tuple[int, ...], classes: int, seed: int) -> Classifier:
    """A fresh classifier whose weights depend only on the seed."""
    cls = find.member("encoder", plan.encoder)
    known = inspect.signature(cls).parameters
    for name in plan.options:
        if name not in known:
            raise ValueError(f"encoder {plan.encoder!r} has no {name}; leave model.{name} out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(seed).fork("weights").seed)
        try:
            encoder = cast(nn.Module, cls(shape, **plan.options))
            model = Classifier(encoder, plan.head.make(cast(int, encoder.width), classes), _normalize(plan))
            with torch.no_grad():
                model.eval()(torch.zeros(2, *shape))  # one pass: what does not fit is said here, not while training
        except (ValueError, RuntimeError) as error:
            said = str(error).partition("\n")[0]
            raise ValueError(f"model {plan.encoder!r} cannot be made for samples of shape {shape} ({said})") from error
    return model.train()


def _normalize(plan: ModelPlan) -> nn.Module | None:
    if plan.per_image:
        return PerImage()
    return None if plan.mean is None or plan.std is None else Normalize(plan.mean, plan.std)


def build_optimizer(plan: OptimizerPlan, model: nn.Module, method: Method) -> Optimizer:
    """The optimizer over the model's parameters and the method's own, with weight decay on kernels only."""
    modules = [model, method] if isinstance(method, nn.Module) else [model]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if plan.name == "sgd":
        return SGD(groups, lr=plan.lr, momentum=plan.momentum, fused=True)
    return (Adam if plan.name == "adam" else AdamW)(groups, lr=plan.lr, fused=True)


class Batches:
    """The batches of a training run, augmented, with the positives and the pool that the method needs."""

    def __init__(
        self, split: Split, size: int, needs: Needs, seed: int, device: torch.device, augment: Augment = _NO_AUGMENT
    ) -> None:
        self.split, self.device, self.augment = split, device, augment
        self.order = Order(len(split), size, seed)
        self.positives = Positives(split.y, seed) if needs.positive else None
        self.pool = Pool(len(split), needs.pool, seed) if needs.pool else None
        self.rng = Rng(seed).fork("augment")
        self._take("batch", 0, torch.arange(1))  # augmentation that does not fit the data is refused here

    def batch(self, step: int, which: Tensor) -> Batch:
        """The batch of these positions; ``step`` decides its pool and how its images are augmented."""
        batch = self._take("batch", step, which)
        positive = pool = None
        if self.positives is not None:
            positive = self._take("positive", step, self.positives.draw(self.split.y[which], which)).x
        if self.pool is not None:
            pool = self._take("pool", step, self.pool.draw(step))
        return Batch(batch.x, batch.y, batch.index, positive, pool)

    def images(self, step: int, which: Tensor) -> Tensor:
        """The images alone of the batch that this step has."""
        return self._take("batch", step, which).x

    def _take(self, role: str, step: int, which: Tensor) -> Batch:
        """Samples as they are seen in this role at this step; keyed by sample, so their neighbours change nothing."""
        batch = self.split.batch(which, self.device)
        x = self.augment(batch.x, self.rng.fork(role).fork(step).at(batch.index))
        return Batch(x, batch.y, batch.index)

    def state(self) -> dict[str, Tensor]:
        """The sampler's memory as tensors."""
        state = {} if self.positives is None else self.positives.state()
        return {name: torch.as_tensor(value) for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a stored state."""
        if self.positives is not None:
            self.positives.restore(state)
