"""The gradient attack loop: which loss to maximize, in which threat, by which step rule, and which iterate to return.

The loop attacks a micro-batch of samples at a time. A sample that is finished (misclassified, or out of steps) leaves
the micro-batch and the next one in the queue takes its slot, so the model sees full micro-batches however many samples
finish early. Step count, rule state, run number and random numbers belong to the sample, so its result does not
depend on the other samples in the batch. A sample whose first run failed, or any of a few samples, may have several
runs (restarts or targets) in the micro-batch at once; the success of the lowest run is kept, as if they had run one
after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import get_args

import torch
from torch import Tensor, nn

from holdfast.attacks._checks import check, check_outputs, check_targets, one_of
from holdfast.attacks._gradients import Evaluated, changed, estimated, gradient
from holdfast.attacks._microbatch import MicroBatch
from holdfast.attacks._rules import Point, Rule, project
from holdfast.contracts import Cost, Keep, Loss, Model, Outputs, Rows, Start, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.view import confirmed, crafting
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import logit_difference
from holdfast.rng import Rng

Draw = Callable[[Threat, Tensor, Rng], Tensor]
"""A start of an attack's own: (threat, x, rng) -> starting points."""

_NEVER = torch.iinfo(torch.int64).max  # the run that fooled a sample that no run has fooled
FEW = 16  # samples, of which a step costs hardly less than one of several times as many
_NEAR = 1e-3  # the standard deviation of the start "near"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A gradient attack: loss, threat, step rule, the iterate to keep, the start, and the number of steps.

    ``targeted``: success is the class ``rows["target"]``, not any misclassification. ``per_target``: a run for each of
    the ``targets`` wrong classes with the largest logits at x (None: all), the class in ``rows["target"]``.
    ``clock``: the loss may read ``rows["step"]`` and ``rows["run"]``. ``score``: what ranks iterates and what ``watch``
    receives, if the losses of different steps or runs cannot be compared. ``outside``: the first iterates of a run that
    may lie outside the threat and are never returned.
    """

    threat: Threat
    loss: Loss
    rule: Rule
    keep: Keep
    start: Start | Draw
    steps: int
    restarts: int = 1
    targeted: bool = False
    per_target: bool = False
    targets: int | None = None
    clock: bool = False
    score: Loss | None = None
    outside: int = 0

    def __post_init__(self) -> None:
        one_of("keep", self.keep, get_args(Keep))
        if isinstance(self.start, str):
            one_of("start", self.start, get_args(Start))
        if not callable(self.loss):
            raise ValueError(
                f"loss is {self.loss!r} but must be a function, e.g. holdfast.losses.classification.cross_entropy"
            )
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(
                f"steps is {self.steps} and restarts {self.restarts} but an attack needs at least one of each"
            )
        if self.restarts > 1 and (self.keep == "last" or self.start == "clean"):
            raise ValueError(
                'restarts need a start other than "clean" and a keep other than "last"; else they repeat or are lost'
            )
        if self.per_target and self.keep == "last":
            raise ValueError('an attack that runs once per target needs a keep other than "last", else runs are lost')

    @property
    def evaluates_last(self) -> bool:
        """True if the last iterate is evaluated too, to rank it or to decide on a restart; costs one more forward."""
        return self.keep in ("worst", "closest") or self.restarts > 1 or self.per_target

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat, self.targeted)
        passes = self.steps * ceil(len(x) / microbatch.size())
        with crafting(model, rng, passes) as view, torch.inference_mode(False), torch.enable_grad():
            queue = _Queue(self, x.detach(), rows, rng)
            if self.per_target and len(x):
                queue.rank_classes(view, watch)
            batch = queue.first()
            while batch is not None:
                batch = self._step(view, queue, batch, watch)
        return queue.result

    def _step(self, view: Model, queue: "_Queue", batch: MicroBatch, watch: Watch | None) -> MicroBatch | None:
        out, loss, grad = estimated(partial(self._evaluate, view, queue, batch, watch))
        moved = self._move(batch, grad, loss)
        if self.keep == "last" and moved.left > 0:  # no sample can be finished, so do not wait for the device
            return moved
        finished = queue.record(view, batch, batch.x_adv, out, loss)
        if not self.evaluates_last:
            finished = queue.record_last(moved, finished)
        return queue.refill(moved, finished) if finished.any() else moved

    def _evaluate(self, view: Model, queue: "_Queue", batch: MicroBatch, watch: Watch | None, draw: int) -> Evaluated:
        """One pass forward and backward; ``draw`` numbers the passes at one iterate."""
        x_adv = batch.x_adv.detach().requires_grad_()
        out = view.outputs(changed(x_adv, batch.rows, batch.t, draw))._replace(x=x_adv)
        queue.check_labels(out)
        loss = self.loss(out, batch.clocked if self.clock else batch.rows)
        grad = gradient(loss, x_adv)
        loss = loss.detach()
        if watch is not None:
            watch(batch.rows, batch.x_adv, self.scored(out, loss, batch), Cost(len(x_adv), len(x_adv)))
        return out, loss, grad

    def scored(self, out: Outputs, loss: Tensor, batch: MicroBatch) -> Tensor:
        """What ranks the iterates, (b,)."""
        return loss if self.score is None else self.score(out, batch.rows).detach()

    def _move(self, batch: MicroBatch, grad: Tensor, loss: Tensor) -> MicroBatch:
        point = Point(batch.x, batch.x_adv, grad, loss, batch.t, self.threat, batch.corners)
        x_adv, state = self.rule.move(point, batch.state)
        return replace(batch, x_adv=x_adv, state=state, t=batch.t + 1, left=batch.left - 1)


class _Queue:
    """The samples of one call: which ones wait for a slot, and the best iterate found for each."""

    def __init__(self, loop: Loop, x: Tensor, rows: Rows, rng: Rng) -> None:
        self.loop, self.x, self.rows, self.rng = loop, x, rows, rng
        self.result = x.clone()
        self.waiting = torch.arange(len(x), device=x.device)
        self.started = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self.won = torch.full_like(self.started, _NEVER)
        self.score = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        self.labels_checked, self.eager = False, len(x) <= FEW
        self.runs, self.ranking = loop.restarts, x.new_zeros(len(x), 0, dtype=torch.int64)

    @torch.no_grad()
    def rank_classes(self, view: Model, watch: Watch | None) -> None:
        """Rank the wrong classes by their logits at x; one run follows for each target and restart."""
        parts = []
        for ids in micro_batches(self.x):
            x, rows = self.x[ids], self.rows.take(ids)
            out = view.outputs(x)
            self.check_labels(out)
            targets = check_targets(self.loop.targets, out.logits.shape[1])
            wrong = out.logits.scatter(1, rows.y[:, None], -torch.inf)
            parts.append(wrong.argsort(dim=1, descending=True, stable=True)[:, :targets])
            self.runs = self.loop.restarts * targets
            if watch is not None:
                watch(rows, x, logit_difference(out, rows), Cost(forwards=len(x)))
        self.ranking = torch.cat(parts)

    def check_labels(self, out: Outputs) -> None:
        """Check the labels of the call once, when the first outputs tell the number of classes."""
        if not self.labels_checked:
            check_outputs(self.rows, out.logits, self.loop.targeted)
            self.labels_checked = True

    def record(self, view: Model, batch: MicroBatch, x_adv: Tensor, out: Outputs, loss: Tensor) -> Tensor:
        """Keep the evaluated iterates that are better than the earlier ones; returns the finished samples, (b,)."""
        keep, ids, targeted = self.loop.keep, batch.ids, self.loop.targeted
        ended = batch.t >= self.loop.steps
        if keep == "last":
            return ended
        fooled = batch.rows.reached(out.logits.detach().argmax(1), targeted)
        if self.loop.outside:
            fooled &= batch.t >= self.loop.outside
        fooled = confirmed(view, x_adv, batch.rows["target"] if targeted else batch.rows.y, fooled, targeted)
        if keep == "fooled":
            return self._keep_first(batch, x_adv, fooled, ended)
        if keep == "closest":
            score = -self.loop.threat.norm.length(x_adv - batch.x)
        else:
            score = self.loop.scored(out, loss, batch)
        if self.loop.outside:
            score = torch.where(batch.t >= self.loop.outside, score, -torch.inf)
        before = self.won[ids] < _NEVER
        better = (fooled & ~before) | ((fooled == before) & (score > self.score[ids]))
        self.result[ids[better]] = x_adv[better]
        self.score[ids[better]] = score[better].to(self.score)
        self.won[ids] = torch.where(fooled & ~before, batch.runs, self.won[ids])
        self._queue_again(ids[ended])
        return ended

    def _keep_first(self, batch: MicroBatch, x_adv: Tensor, fooled: Tensor, ended: Tensor) -> Tensor:
        """Keep the success of each sample's lowest run, or else its last run's last iterate; returns what finished."""
        finished, ids, runs = fooled | ended, batch.ids, batch.runs
        if not finished.any():
            return finished
        self.won.scatter_reduce_(0, ids[fooled], runs[fooled], "amin")
        won = self.won[ids]
        kept = torch.where(won < _NEVER, fooled & (runs == won), ended & (runs == self.runs - 1))
        self.result[ids[kept]] = x_adv[kept]
        if not self.eager:
            self._queue_again(ids[ended & ~fooled & (runs == 0)])
        return finished | (runs > won)

    def record_last(self, moved: MicroBatch, finished: Tensor) -> Tensor:
        """Keep the last iterate of samples out of steps without evaluating it; returns all finished samples, (b,)."""
        ended = (moved.t >= self.loop.steps) & ~finished
        self.result[moved.ids[ended]] = moved.x_adv[ended]
        return finished | ended

    def _queue_again(self, ids: Tensor) -> None:
        """Queue samples again that have runs left."""
        self.waiting = torch.cat([self.waiting, ids[self.started[ids] < self.runs]])

    def first(self) -> MicroBatch | None:
        """The first micro-batch; None if there are no samples."""
        ids, runs = self._next(microbatch.size())
        return self._start(ids, runs) if len(ids) else None

    def refill(self, batch: MicroBatch, finished: Tensor) -> MicroBatch | None:
        """Fill finished and empty slots from the queue; None if no samples are left."""
        slots = finished.nonzero().squeeze(1)
        ids, runs = self._next(microbatch.size() - len(finished) + len(slots))
        if len(ids) > len(slots):
            return batch.take(~finished).join(self._start(ids, runs))
        if len(ids):
            batch = batch.put(slots[: len(ids)], self._start(ids, runs))
        if len(ids) == len(slots):
            return batch
        stays = ~finished
        stays[slots[: len(ids)]] = True
        return batch.take(stays) if stays.any() else None

    def _next(self, count: int) -> tuple[Tensor, Tensor]:
        """The next runs, at most ``count``: positions of the samples and numbers of the runs.

        Where success ends a sample's attack, its first run has to fail before the second begins, unless there are few
        samples; the later ones do not wait for each other if there are free slots.
        """
        taken = [(self.waiting[:0], self.started[:0])]
        while count and len(self.waiting):
            ids, self.waiting = self.waiting[:count], self.waiting[count:]
            if self.loop.keep == "fooled" and self.runs > 1:
                ids = ids[self.won[ids] == _NEVER]
                begun = self.eager | (self.started[ids] > 0)
                self._queue_again(ids[begun & (self.started[ids] < self.runs - 1)])
            taken.append((ids, self.started[ids]))
            self.started[ids] += 1
            count -= len(ids)
        ids, runs = (torch.cat(parts) for parts in zip(*taken, strict=True))
        return ids, runs

    def _start(self, ids: Tensor, runs: Tensor) -> MicroBatch:
        """These samples at the starting points of these runs."""
        x, rows, threat = self.x[ids], self._rows(ids, runs), self.loop.threat
        # half precision may overflow to NaN, which clamping would keep
        corners = () if x.itemsize < 4 else threat.corners(x) or ()
        x_adv = x.clone() if self.loop.start == "clean" else self._draw(x, corners, rows.index, runs)
        t, state = torch.zeros(len(ids), dtype=torch.int64, device=x.device), self.loop.rule.begin(x_adv)
        return MicroBatch(ids, runs, x, x_adv, corners, rows, state, t, self.loop.steps)

    def _rows(self, ids: Tensor, runs: Tensor) -> Rows:
        """What the loss reads of these samples, with the class that the run aims at."""
        rows, given = self.rows.take(ids), {}
        if self.loop.clock:
            given["run"] = runs
        if self.loop.per_target:
            rank = runs // self.loop.restarts
            given["target"] = self.ranking[ids].gather(1, rank[:, None]).squeeze(1)
        return replace(rows, given={**rows.given, **given}) if given else rows

    def _draw(self, x: Tensor, corners: tuple[Tensor, ...], index: Tensor, runs: Tensor) -> Tensor:
        """Random starting points, which depend on the sample and the number of its run."""
        start, threat, rng = self.loop.start, self.loop.threat, self.rng.fork("start").at(index).at(runs)
        if not isinstance(start, str):
            return start(threat, x, rng)
        x_adv = _inside(threat, x, rng) if start == "random" else x + _NEAR * rng.normal(x)
        return project(threat, x_adv, x, corners)


def _inside(threat: Threat, x: Tensor, rng: Rng) -> Tensor:
    """A uniform point of the ball in linf, in other norms a uniform share of the way to one.

    Nearly all of an l2 or l1 ball of many dimensions is at its surface, from where steps are too short to get far.
    """
    x_adv = threat.sample_ball(x, rng)
    if isinstance(threat.norm, LInf):
        return x_adv
    share = rng.fork("share").uniform(x.new_empty(len(x)))
    return x + share.reshape(-1, *[1] * (x.ndim - 1)) * (x_adv - x)


def micro_batches(x: Tensor) -> Iterator[Tensor]:
    """The positions of the samples of x, a micro-batch at a time, for attacks that do not run :class:`Loop`."""
    yield from torch.split(torch.arange(len(x), device=x.device), microbatch.size())
