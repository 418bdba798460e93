"""Samplers for training: batches of an epoch, a positive for each anchor, and a pool of candidate negatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from holdfast.rng import Rng


def _shuffled(n: int, rng: Rng, number: int) -> Tensor:
    return torch.randperm(n, generator=rng.fork(number).generator())


@dataclass(frozen=True)
class Order:
    """Shuffled batches of each epoch. They depend only on (seed, epoch), so there is no state to save."""

    n: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.batch < 1:
            raise ValueError(f"{self.n} samples in batches of {self.batch} were asked for; both must be at least 1")

    @property
    def steps(self) -> int:
        """The number of batches in an epoch. An incomplete last batch is dropped, unless it is the only one."""
        return max(1, self.n // self.batch)

    def epoch(self, e: int) -> Tensor:
        """Return the positions of the samples of epoch ``e``, (steps, batch), without repetition."""
        return _shuffled(self.n, Rng(self.seed).fork("order"), e)[: self.steps * self.batch].reshape(self.steps, -1)


@dataclass(frozen=True)
class Pool:
    """Positions of candidate negatives, independent of the batches. They depend only on (seed, step)."""

    n: int
    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.size < 1:
            raise ValueError(f"a pool of {self.size} out of {self.n} samples was asked for; both must be at least 1")

    def draw(self, step: int) -> Tensor:
        """Return ``size`` positions; successive steps go through all samples before shuffling again."""
        size = min(self.size, self.n)
        cycle, block = divmod(step, self.n // size)
        # the shuffle is repeated in every step: 0.5 ms for 60000 samples, and no state to save
        return _shuffled(self.n, Rng(self.seed).fork("pool"), cycle)[block * size : (block + 1) * size]


class Positives:
    """Draw a positive, another sample of the same class, for each anchor: TLA's class-wise queue (Mao et al. 2019).

    Each class is traversed in random order without repetition. When one class is exhausted, all classes are shuffled
    again, as in the authors' code. An anchor is its own positive only if its class has no other sample.
    """

    def __init__(self, y: Tensor, seed: int) -> None:
        self._y = y.to("cpu", torch.int64)
        self._rng = Rng(seed).fork("positives")
        self._size: list[int] = self._y.bincount().tolist()
        self._first = [0, *accumulate(self._size)]
        self._shuffle(0)

    def _shuffle(self, turn: int) -> None:
        order = _shuffled(len(self._y), self._rng, turn)
        by_class: list[int] = order[self._y[order].argsort(stable=True)].tolist()
        self._turn, self._order, self._next = turn, by_class, self._first[:-1]

    def draw(self, y: Tensor, anchor: Tensor) -> Tensor:
        """Draw a position for each label; ``anchor`` holds the positions, in the same split, of the anchors."""
        return torch.tensor([self._one(*pair) for pair in zip(y.tolist(), anchor.tolist(), strict=True)]).long()

    def _one(self, label: int, anchor: int) -> int:
        if not (0 <= label < len(self._size) and self._size[label]):
            raise ValueError(f"a positive of class {label} was asked for but the split has no sample of it")
        if self._order[self._next[label]] == anchor and self._size[label] > 1:
            self._skip_anchor(label)
        drawn = self._order[self._next[label]]
        self._next[label] += 1
        if self._next[label] == self._first[label + 1]:
            self._shuffle(self._turn + 1)
        return drawn

    def _skip_anchor(self, label: int) -> None:
        # swap the anchor with the next sample; if it is the last one, shuffle all classes first
        anchor = self._order[self._next[label]]
        if self._next[label] + 1 == self._first[label + 1]:
            self._shuffle(self._turn + 1)
        here = self._next[label]
        if self._order[here] == anchor:
            self._order[here], self._order[here + 1] = self._order[here + 1], anchor

    def state(self) -> dict[str, Tensor | int]:
        """Return the state, from which a resumed run continues identically."""
        return {"turn": self._turn, "order": torch.tensor(self._order), "next": torch.tensor(self._next)}

    def restore(self, state: Mapping[str, Tensor | int]) -> None:
        """Restore the result of :meth:`state` for the same split."""
        order, following, turn = (torch.as_tensor(state.get(name, -1)) for name in ("order", "next", "turn"))
        if not (turn.ndim == 0 and turn >= 0 and self._fits(order, following)):
            raise ValueError("this state of the positives belongs to another split; start the run anew")
        self._turn, self._order, self._next = int(turn), order.tolist(), following.tolist()

    def _fits(self, order: Tensor, following: Tensor) -> bool:
        n, ends = len(self._y), self._first
        if order.dtype != torch.int64 or order.shape != (n,) or not torch.equal(order.sort().values, torch.arange(n)):
            return False
        if not torch.equal(self._y[order], self._y.sort().values) or following.shape != (len(self._size),):
            return False
        places = zip(ends, following.tolist(), ends[1:], strict=False)
        return all(first <= place < max(last, first + 1) for first, place, last in places)
