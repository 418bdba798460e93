"""Attacks that only ask a model for its outputs: how queries are made, counted and limited.

The model is any :data:`holdfast.contracts.Predictor`. An attack subclasses :class:`QueryAttack`, which checks its
inputs, and asks through an :class:`Oracle`, which counts the queries of each sample. If it asks one query after another
for each sample, it implements :class:`Search` and :func:`run` does the rest: samples that are finished leave the
micro-batch and the next ones take their slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._checks import check, check_labels, one_of
from holdfast.contracts import Cost, Loss, Outputs, Predictor, Rows, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import crafting, frozen
from holdfast.geometry import Threat
from holdfast.rng import Rng


class Reply(NamedTuple):
    """The predicted labels, (b,), which are -1 where scores are not finite, and the scores if the model gives any."""

    label: Tensor
    scores: Tensor | None


@contextmanager
def answering(model: Predictor, rng: Rng, passes: int = 0) -> Iterator[Callable[[Tensor], Reply]]:
    """A function that asks the model, without gradients; a module is in eval mode within the context.

    With ``passes``, their approximate number, a module is asked in the fast form that gradient attacks use, in float32.
    """
    if isinstance(model, nn.Module) and passes:
        with arithmetic("float32"), crafting(model, rng, passes) as view, torch.no_grad():
            yield lambda x: _reply(view(x), x)
    elif isinstance(model, nn.Module):
        with frozen(model, rng), torch.no_grad():
            yield lambda x: _reply(model(x), x)
    else:
        with torch.no_grad():
            yield lambda x: _reply(model(x), x)


def _reply(out: object, x: Tensor) -> Reply:
    out = getattr(out, "logits", out)
    if isinstance(out, Tensor) and len(out) == len(x):
        if out.ndim == 2 and out.is_floating_point():
            out = out.to(x.device)
            return Reply(torch.where(out.isfinite().all(1), out.argmax(1), -1), out)
        if out.ndim == 1 and not out.is_floating_point():
            return Reply(out.to(x.device, torch.int64), None)
    given = f"{out.dtype} of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    raise ValueError(
        f"the model returned {given} for {len(x)} inputs but scores ({len(x)}, classes) or integer labels ({len(x)},) "
        "are needed; wrap it so that it returns them, functions of numpy arrays by holdfast.attacks.from_numpy"
    )


class Answer(NamedTuple):
    """Per query, (b,): whether the point is what the attack wants, and the loss, which is 0 or 1 for labels alone."""

    reached: Tensor
    loss: Tensor


class Oracle:
    """Answers the queries of one call and counts them: ``left`` is the number that each sample may still make."""

    def __init__(
        self, ask: Callable[[Tensor], Reply], attack: "QueryAttack", x: Tensor, rows: Rows, watch: Watch | None
    ) -> None:
        self._ask, self._attack, self._rows, self._watch = ask, attack, rows, watch
        self._checked = False
        self.left = torch.full((len(x),), attack.queries, dtype=torch.int64, device=x.device)

    def __call__(self, ids: Tensor, x_adv: Tensor) -> Answer:
        """The answers for these points, a micro-batch at a time; ``ids`` are the positions of their samples."""
        size = microbatch.size()
        pairs = zip(torch.split(ids, size), torch.split(x_adv, size), strict=True)
        parts = [self._answer(self._rows.take(some), points) for some, points in pairs]
        self.left.index_add_(0, ids, torch.full_like(ids, -1))
        return parts[0] if len(parts) == 1 else Answer(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _answer(self, rows: Rows, x_adv: Tensor) -> Answer:
        if not len(x_adv):
            return Answer(x_adv.new_empty(0, dtype=torch.bool), x_adv.new_empty(0))
        reply = self._ask(x_adv)
        self._check(reply)
        reached = rows.reached(reply.label, self._attack.targeted)
        loss = self._loss(reply, x_adv, rows, reached)
        if self._watch is not None:
            self._watch(rows, x_adv, loss, Cost(forwards=len(x_adv)))
        return Answer(reached, loss)

    def _loss(self, reply: Reply, x_adv: Tensor, rows: Rows, reached: Tensor) -> Tensor:
        climbed = self._attack.climbed
        if climbed is None:
            return reached.to(x_adv.dtype)
        if reply.scores is None:
            raise ValueError(
                f"the model returned labels but {type(self._attack).__name__} needs scores (b, classes); "
                "use RayS or HopSkipJump, which need labels only"
            )
        return climbed(Outputs(x_adv, reply.scores, reply.scores), rows)

    def _check(self, reply: Reply) -> None:
        """Check the labels of the call once, when the first reply tells the number of classes, if it gives scores."""
        if self._checked:
            return
        self._checked, rows, targeted = True, self._rows, self._attack.targeted
        seen = [reply.label, rows.y, *([rows["target"]] if targeted else [])]
        classes = 1 + max(int(labels.max()) for labels in seen) if reply.scores is None else reply.scores.shape[1]
        check_labels(rows, classes, targeted)


class QueryAttack(StandaloneAttack, ABC):
    """An attack that asks the model at most ``queries`` times per sample; a subclass adds ``search``.

    ``norms`` names the norms in which it works. ``rounded`` is True if it may ask the fast form of a module, whose
    outputs differ by rounding: not if it returns points right behind the decision boundary. An attack that climbs a
    loss of the scores returns it as ``climbed``; without one, the attack needs labels alone.
    """

    norms: ClassVar[tuple[str, ...]]
    rounded: ClassVar[bool] = False
    queries: int
    targeted: bool = False
    black_box = True

    def __post_init__(self) -> None:
        one_of("norm", self.threat.norm.name, self.norms)
        if self.queries < 1:
            raise ValueError(f"queries is {self.queries} but an attack needs at least one per sample")

    @property
    def climbed(self) -> Loss | None:
        """The loss of the scores that the attack climbs, or None if it needs labels alone."""
        return None

    @abstractmethod
    def search(self, oracle: Oracle, x: Tensor, rows: Rows, rng: Rng) -> Tensor:
        """The points found for x; those outside the threat count as failures."""

    def __call__(
        self, model: Predictor, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x, found with outputs of the model alone; x itself where none is within eps."""
        rows, x = Rows.of(y), x.detach()
        check(x, rows, self.threat, self.targeted)
        passes = self.queries * ceil(len(x) / microbatch.size()) if self.rounded else 0
        with answering(model, rng, passes) as ask:
            found = self.search(Oracle(ask, self, x, rows, watch), x, rows, rng)
        return torch.where(column(self.threat.contains(found, x), x), found, x)


State = dict[str, Tensor]
"""What a search knows, by name, with one row per sample; ``best`` holds the points to return."""


@dataclass(frozen=True)
class Slots:
    """The samples that are searched at the moment, with their positions in the call and their state."""

    ids: Tensor
    x: Tensor
    rows: Rows
    state: State


class Search(Protocol):
    """A search that makes one query at a time for each sample; ``t`` counts the earlier queries of each, (b,).

    What does not depend on the answers is planned for ``ahead`` queries at once, which costs little more than for one.
    """

    @property
    def ahead(self) -> int: ...

    def begin(self, x: Tensor, rows: Rows) -> State:
        """The state of samples that enter."""

    def plan(self, slots: Slots, t: Tensor) -> State:
        """What the next ``ahead`` queries need, by name: (b, ahead, ...)."""

    def propose(self, slots: Slots, t: Tensor, planned: State) -> Tensor:
        """The points to ask for; ``planned`` holds what was planned for this query, (b, ...)."""

    def learn(self, slots: Slots, t: Tensor, x_adv: Tensor, answer: Answer) -> tuple[State, Tensor]:
        """The new state, and which samples are finished, (b,)."""


def run(search: Search, oracle: Oracle, x: Tensor, rows: Rows) -> Tensor:
    """Search until each sample is finished or out of queries; returns the best points."""
    found, queries, size = x.clone(), oracle.left.clone(), microbatch.size()
    waiting = torch.arange(len(x), device=x.device)
    slots, plan, number = _enter(search, x, rows, waiting[:0]), State(), 0
    while len(slots.ids) or len(waiting):
        if number == 0 or not len(slots.ids):  # samples enter where a plan begins
            count, number = size - len(slots.ids), 0
            slots, waiting = _join(slots, _enter(search, x, rows, waiting[:count])), waiting[count:]
            plan = search.plan(slots, (queries - oracle.left)[slots.ids])
        t = (queries - oracle.left)[slots.ids]
        x_adv = search.propose(slots, t, {name: value[:, number] for name, value in plan.items()})
        state, finished = search.learn(slots, t, x_adv, oracle(slots.ids, x_adv))
        slots, number = replace(slots, state=state), (number + 1) % search.ahead
        finished = finished | (oracle.left[slots.ids] <= 0)
        if finished.any():
            found[slots.ids[finished]] = state["best"][finished]
            slots, plan = _take(slots, ~finished), {name: value[~finished] for name, value in plan.items()}
    return found


def _enter(search: Search, x: Tensor, rows: Rows, ids: Tensor) -> Slots:
    """These samples in their initial state."""
    return Slots(ids, x[ids], rows.take(ids), search.begin(x[ids], rows.take(ids)))


def _join(slots: Slots, entering: Slots) -> Slots:
    if not len(entering.ids):
        return slots
    state = {name: torch.cat([old, entering.state[name]]) for name, old in slots.state.items()}
    ids, x = torch.cat([slots.ids, entering.ids]), torch.cat([slots.x, entering.x])
    return Slots(ids, x, slots.rows.join(entering.rows), state)


def _take(slots: Slots, which: Tensor) -> Slots:
    state = {name: value[which] for name, value in slots.state.items()}
    return Slots(slots.ids[which], slots.x[which], slots.rows.take(which), state)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (b,) values so that they broadcast over the rows of ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def reach(x: Tensor, threat: Threat) -> Tensor:
    """The (b,) distance in linf within which points are looked for: to the farthest corner of the box.

    Without a box it is ten times the largest absolute value of the sample plus ten.
    """
    flat = x.flatten(1)
    if isfinite(threat.low) and isfinite(threat.high):
        return torch.maximum(flat - threat.low, threat.high - flat).amax(1)
    return 10 * (flat.abs().amax(1) + 1)
