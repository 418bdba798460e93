"""Square Attack, a score-based random search."""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from holdfast.attacks._queries import Answer, Oracle, QueryAttack, Slots, State, column, run
from holdfast.attacks._windows import HALVED, Bumps, Signs
from holdfast.contracts import Loss, Rows
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference, targeted_cross_entropy
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Square(QueryAttack):
    """Random search with square windows (Andriushchenko et al. 2020), as in AutoAttack, in linf, l2 and l1.

    Each query changes one window of the best perturbation so far and is kept if it raises the loss: the difference
    between the largest wrong and the true score, or with ``targeted`` the negative cross entropy of
    ``given["target"]``. A window covers the share ``p`` of the image at first and less with time, on a schedule that is
    stretched to the number of queries. A misclassified sample stops.

    Images are (b, channels, height, width), of any shape; a window higher than the image is as wide as its share asks.
    Inputs of another shape are flattened to an image of one row, whose windows are runs of neighboring features.
    Unlike in AutoAttack every sample has windows of its own, windows reach the last row and column, and in linf a
    window that would change nothing is tried with the opposite signs, as in the authors' code.
    """

    threat: Threat
    queries: int = 5000
    p: float = 0.8
    targeted: bool = False
    keep = "fooled"
    norms = ("linf", "l2", "l1")
    rounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p <= 1:
            raise ValueError(
                f"p is {self.p} but it is the share of the image that a window covers, above 0 and up to 1"
            )

    @property
    def climbed(self) -> Loss:
        """The loss that the search climbs."""
        return targeted_cross_entropy if self.targeted else logit_difference

    def search(self, oracle: Oracle, x: Tensor, rows: Rows, rng: Rng) -> Tensor:
        """The first misclassified points, or those with the largest loss."""
        if self.threat.eps == inf:
            raise ValueError("eps is infinite but Square draws perturbations of length eps; give a finite eps")
        kind = Signs if self.threat.norm.name == "linf" else Bumps
        return run(_Squares(kind(self.threat, x, self.p), self.queries, rng), oracle, x, rows)


@dataclass(frozen=True)
class _Squares:
    """The search: the first query is a random start, every other one changes a window of the best point so far."""

    moves: Signs | Bumps
    queries: int
    rng: Rng
    ahead = 32

    def begin(self, x: Tensor, rows: Rows) -> State:
        """The starting points."""
        u = self.rng.fork("start").at(rows.index).uniform(x.new_empty(len(x), self.moves.start_draws))
        return {**self.moves.start(x, u), "loss": x.new_full((len(x),), -inf)}

    def plan(self, slots: Slots, t: Tensor) -> State:
        """The random windows of the next queries."""
        shape = len(t), self.ahead
        times = (t[:, None] + torch.arange(self.ahead, device=t.device)).flatten()
        rng = self.rng.fork("window").at(slots.rows.index.repeat_interleave(self.ahead)).at(times)
        u = rng.uniform(slots.x.new_empty(len(times), self.moves.draws))
        windows = self.moves.windows(self._level(times), u)
        return {name: value.reshape(*shape, *value.shape[1:]) for name, value in windows.items()}

    def propose(self, slots: Slots, t: Tensor, planned: State) -> Tensor:
        """The best points with one window changed."""
        moved = self.moves.move(slots.x, slots.state, planned)
        return torch.where(column(t == 0, moved), slots.state["best"], moved)

    def learn(self, slots: Slots, t: Tensor, x_adv: Tensor, answer: Answer) -> tuple[State, Tensor]:
        """Keep points with a larger loss; misclassified samples are finished."""
        best, loss = slots.state["best"], slots.state["loss"]
        better = answer.reached | (answer.loss > loss)
        kept = {"best": torch.where(column(better, best), x_adv, best), "loss": torch.where(better, answer.loss, loss)}
        return slots.state | kept, answer.reached

    def _level(self, t: Tensor) -> Tensor:
        """How often the area of the windows has halved, (b,); the start does not count as a query of the schedule."""
        share = (t - 1) * 10_000 // max(1, self.queries - 1)
        return (share[:, None] > self._halved).sum(1)

    @cached_property
    def _halved(self) -> Tensor:
        return torch.tensor(HALVED, device=self.moves.like.device)
