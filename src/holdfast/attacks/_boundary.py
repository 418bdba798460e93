"""What minimal-norm attacks share: evaluating points, linearizing decision boundaries, and the closest success."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import torch
from torch import Tensor, nn

from holdfast.attacks._ascent import gradient, micro_batches
from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._checks import check, check_outputs
from holdfast.attacks._hyperplane import DUAL
from holdfast.contracts import Cost, Model, Outputs, Rows, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import crafting, unwrapped
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference, targeted_logit_difference
from holdfast.models.classifier import adapt
from holdfast.rng import Rng

_MANY = 9  # the number of target classes of AutoAttack


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (b,) values so that they broadcast over the rows of ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


@contextmanager
def differentiable(model: nn.Module, x: Tensor, rng: Rng, steps: int) -> Iterator[tuple[Model, Model]]:
    """The view of the model for ``steps`` gradients at x, in float32, and the model itself, which decides on labels.

    A point just behind the boundary may be before it in bfloat16, or in a view with folded batch norm.
    """
    passes = steps * ceil(len(x) / microbatch.size())
    with (
        arithmetic("float32"),
        crafting(model, rng, passes) as view,
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield view, adapt(unwrapped(model))


class Run(NamedTuple):
    """Samples under attack: their positions in the call, clean inputs, iterates, rows, and classes (b, k) to aim at."""

    ids: Tensor
    x: Tensor
    x_adv: Tensor
    rows: Rows
    classes: Tensor

    def take(self, which: Tensor) -> "Run":
        """Select samples by a mask."""
        return Run(self.ids[which], self.x[which], self.x_adv[which], self.rows.take(which), self.classes[which])


@dataclass(frozen=True)
class Probe:
    """The model under attack: evaluates points and reports every evaluation to ``watch``.

    Iterates of a minimal-norm attack may lie outside the threat; ``watch`` sees the clean input in their place.
    """

    view: Model
    model: Model
    threat: Threat
    targeted: bool
    watch: Watch | None

    def clean(self, closest: "Closest", rows: Rows) -> Tensor:
        """The logits of the clean inputs, (b, classes); those that the attack wants as they are have distance 0.

        Refuses labels and targets for which the model has no logit.
        """
        parts = []
        for ids in micro_batches(closest.x):
            part, x = rows.take(ids), closest.x[ids]
            with torch.no_grad():
                out = self.model.outputs(x)
                check_outputs(part, out.logits, self.targeted)
            self._report(out, x, x, part, backwards=0)
            closest.offer(ids, x, part.reached(out.logits.argmax(1), self.targeted))
            parts.append(out.logits)
        return torch.cat(parts)

    def reached(self, run: Run) -> Tensor:
        """(b,) whether the iterates have a label that the attack wants."""
        with torch.no_grad():
            out = self.model.outputs(run.x_adv)
        self._report(out, run.x_adv, run.x, run.rows, backwards=0)
        return run.rows.reached(out.logits.argmax(1), self.targeted)

    def nearest_boundary(self, run: Run) -> tuple[Tensor, Tensor]:
        """The linearized boundary nearest to each iterate: value (b,) and slope of a function that is zero there."""
        _, values, slopes = self.gradients(run, lambda logits: _gaps(logits, run.rows, run.classes, self.targeted))
        return _nearest(values, slopes, self.threat.norm.name)

    def gradients(self, run: Run, functions: Callable[[Tensor], Tensor]) -> tuple[Outputs, Tensor, Iterator[Tensor]]:
        """The outputs, the (b, k) values of functions of the logits, and the input gradient of each of the k.

        The gradients are computed one after the other, so that they need not all fit into memory.
        """
        leaf = run.x_adv.detach().clone().requires_grad_()
        out = self.view.outputs(leaf)
        values = functions(out.logits)
        self._report(out, run.x_adv, run.x, run.rows, backwards=values.shape[1])
        return out, values.detach(), _gradients(values, leaf)

    def _report(self, out: Outputs, x_adv: Tensor, x: Tensor, rows: Rows, backwards: int) -> None:
        if self.watch is None:
            return
        loss = (targeted_logit_difference if self.targeted else logit_difference)(out, rows).detach()
        inside = column(self.threat.contains(x_adv, x), x)
        cost = Cost(len(x), backwards * len(x))
        self.watch(rows, torch.where(inside, x_adv, x).detach(), loss, cost)


def _gradients(values: Tensor, leaf: Tensor) -> Iterator[Tensor]:
    *first, last = values.unbind(1)
    for value in first if values.requires_grad else []:
        (grad,) = torch.autograd.grad(value, leaf, torch.ones_like(value), retain_graph=True)
        yield torch.nan_to_num_(grad, nan=0.0)
    yield gradient(last, leaf)


def ranked(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The ``count`` classes with the largest logits apart from the label, (b, count), the largest first."""
    return logits.scatter(1, y[:, None], -inf).topk(count, dim=1).indices


def aims(logits: Tensor, rows: Rows, targets: int | None, targeted: bool) -> tuple[Tensor, ...]:
    """The classes, (b, k), at which the runs of an attack aim: the given target, the strongest in turn, or all at once.

    ``targets`` counts the strongest; None asks for nine, or for all wrong classes if there are fewer, and 0 for all at
    once.
    """
    classes = logits.shape[1]
    if targeted:
        return (rows["target"][:, None],)
    if targets is not None and targets >= classes:
        raise ValueError(
            f"targets is {targets} but the model has {classes} classes, so there are {classes - 1} wrong ones; "
            "give fewer targets or leave the number to the attack"
        )
    if targets == 0:
        return (ranked(logits, rows.y, classes - 1),)
    return torch.split(ranked(logits, rows.y, targets or min(_MANY, classes - 1)), 1, dim=1)


def _gaps(logits: Tensor, rows: Rows, classes: Tensor, targeted: bool) -> Tensor:
    """The (b, k) functions whose zeros are the boundaries: each class against the label.

    If only the target counts, it is the target against the strongest other class, (b, 1): where a third class is
    predicted, the boundary between target and label is not the one to cross.
    """
    rivals = logits.scatter(1, classes, -inf).amax(1, keepdim=True) if targeted else logits.gather(1, rows.y[:, None])
    return logits.gather(1, classes) - rivals


def _nearest(values: Tensor, slopes: Iterator[Tensor], norm: str) -> tuple[Tensor, Tensor]:
    """The linear function, value (b,) and slope, whose zeros are nearest in the norm; without a box, |value|/|slope|.

    Slopes of zero have no zeros: where there are no others, a function with slope zero is returned.
    """
    if values.shape[1] == 1:
        return torch.nan_to_num(values[:, 0]), next(slopes)
    least = torch.full_like(values[:, 0], inf)
    value = slope = None
    for number, found in zip(values.unbind(1), slopes, strict=True):
        length = torch.linalg.vector_norm(found.flatten(1), DUAL[norm], dim=1).to(number)
        distance = torch.where(length > 0, number.abs() / length, inf)
        closer = distance < least
        value = number if value is None else torch.where(closer, number, value)
        slope = found if slope is None else torch.where(column(closer, found), found, slope)
        least = torch.minimum(distance, least)
    assert value is not None
    assert slope is not None
    return torch.nan_to_num(value), slope


class Closest:
    """The closest point found for each sample that the attack wants, and its length; infinite if there is none."""

    def __init__(self, threat: Threat, x: Tensor) -> None:
        self.threat, self.x, self.point = threat, x, x.clone()
        self.length = torch.full((len(x),), inf, dtype=x.dtype, device=x.device)

    def offer(self, ids: Tensor, x_adv: Tensor, wanted: Tensor) -> None:
        """Record the points that the attack wants, marked by a mask, where they are closer than the earlier ones."""
        length = self.threat.norm.length(x_adv - self.x[ids])
        better = wanted & (length < self.length[ids])
        self.point[ids] = torch.where(column(better, x_adv), x_adv, self.point[ids])
        self.length[ids] = torch.where(better, length.to(self.length), self.length[ids])

    def runs(self, rows: Rows, classes: Tensor, left: Tensor) -> Iterator[Run]:
        """The samples marked by ``left`` at their clean inputs, a micro-batch at a time.

        ``classes`` is (b, k), or (b, aims, k) for runs in which each sample occurs once for each of its aims.
        """
        classes = classes if classes.ndim == 3 else classes[:, None]
        aims = classes.shape[1]
        for part in torch.split(left.nonzero().squeeze(1), max(1, microbatch.size() // max(1, aims))):
            ids = part.repeat_interleave(aims)
            if len(ids):
                yield Run(ids, self.x[ids], self.x[ids], rows.take(ids), classes[part].flatten(0, 1))

    def inside(self) -> Tensor:
        """(b,) whether a point inside the threat was found."""
        return (self.length < inf) & self.threat.contains(self.point, self.x)

    def result(self) -> Tensor:
        """The closest points, or the clean inputs where none is inside the threat."""
        return torch.where(column(self.inside(), self.x), self.point, self.x)


class BoundaryAttack(StandaloneAttack, ABC):
    """An attack that steps to linearized boundaries; a subclass adds ``_passes`` and ``_search``."""

    targeted: bool = False

    @property
    @abstractmethod
    def _passes(self) -> int:
        """The number of gradients that one micro-batch takes at most."""

    @abstractmethod
    def _search(self, probe: Probe, closest: "Closest", logits: Tensor, rows: Rows, rng: Rng) -> None:
        """Offer points to ``closest``; ``logits`` are those of the clean inputs."""

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat, self.targeted)
        x = x.detach()
        if not len(x):
            return x.clone()
        with differentiable(model, x, rng, self._passes) as views:
            probe, closest = Probe(*views, self.threat, self.targeted, watch), Closest(self.threat, x)
            self._search(probe, closest, probe.clean(closest, rows), rows, rng)
        return closest.result()
