"""The batches of a training run."""

import torch
from torch import Tensor

from holdfast.contracts import Batch, Needs
from holdfast.data import Order, Pool, Positives, Split
from holdfast.data.augment import Augment
from holdfast.rng import Rng

_NO_AUGMENT = Augment()


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
        self._take("batch", 0, torch.arange(1))  # raises if the augmentation does not fit the data

    def batch(self, step: int, which: Tensor) -> Batch:
        """The batch of the samples at these positions; its pool and its augmentation depend on ``step``."""
        batch = self._take("batch", step, which)
        positive = pool = None
        if self.positives is not None:
            positive = self._take("positive", step, self.positives.draw(self.split.y[which], which)).x
        if self.pool is not None:
            pool = self._take("pool", step, self.pool.draw(step))
        return Batch(batch.x, batch.y, batch.index, positive, pool)

    def images(self, step: int, which: Tensor) -> Tensor:
        """Only the images of the batch, augmented as in this step."""
        return self._take("batch", step, which).x

    def _take(self, role: str, step: int, which: Tensor) -> Batch:
        """Samples augmented for a role and step; random numbers depend on the sample, not on its batch."""
        batch = self.split.batch(which, self.device)
        x = self.augment(batch.x, self.rng.fork(role).fork(step).at(batch.index))
        return Batch(x, batch.y, batch.index)

    def state(self) -> dict[str, Tensor]:
        state = {} if self.positives is None else self.positives.state()
        return {name: torch.as_tensor(value) for name, value in state.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.positives is not None:
            self.positives.restore(state)
