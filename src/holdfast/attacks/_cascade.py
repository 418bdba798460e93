"""Attacks that run other attacks in turn, each on samples that are still classified correctly."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from holdfast.attacks._ascent import micro_batches
from holdfast.attacks._attack import FixedLoss
from holdfast.attacks._checks import check, check_outputs
from holdfast.contracts import Cost, Keep, Outputs, Rows, Stage, Watch
from holdfast.crafting.view import frozen
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference
from holdfast.rng import Rng


def select(stage: Stage, standing: Tensor, margin: Tensor, fooled: float) -> Tensor:
    """(n,) mask of the samples that a stage is run on.

    ``standing`` marks the samples that no stage has fooled, ``margin`` holds the largest logit difference found for
    each, and ``fooled`` is the share of its samples that the last stage fooled.
    """
    if stage.if_fooled is not None and fooled <= stage.if_fooled:
        return torch.zeros_like(standing)
    many = ceil(stage.share * int(standing.sum()))
    order = margin.where(standing, -torch.inf).argsort(descending=True, stable=True)  # ties: the first sample
    order = order[standing[order]]
    return torch.zeros_like(standing).index_fill(0, order[:many], True)


class CascadeAttack(FixedLoss, ABC):
    """A cascade of attacks on one threat; a subclass adds ``stages``.

    Every stage starts from the clean samples. Called from Python, the ranking of samples is over those of the call.
    """

    threat: Threat
    keep: Keep = "fooled"
    minimal = False

    @abstractmethod
    def stages(self, classes: int) -> Sequence[Stage]:
        """The attacks for a model with this number of classes, in order."""

    def at(self, eps: float) -> Self:
        """The same attack at another eps."""
        return cast(Self, replace(cast(Any, self), threat=replace(self.threat, eps=eps)))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x; samples that no stage fools come back as the point nearest to the boundary."""
        rows, x = Rows.of(y), x.detach()
        check(x, rows, self.threat)
        if not len(x):
            return x.clone()
        result, (margin, classes) = x.clone(), _margin(model, x, rows, rng.fork("clean"), watch)
        fooled = 0.0
        for stage in self.stages(classes):
            todo = select(stage, margin <= 0, margin, fooled)
            if not todo.any():
                continue
            part = rows.take(todo)
            x_adv = stage.attack(model, x[todo], part, rng=rng.fork(stage.name), watch=watch)
            reached, _ = _margin(model, x_adv, part, rng.fork(stage.name).fork("margin"), watch)
            better = todo.nonzero().squeeze(1)[reached > margin[todo]]
            result[better] = x_adv[reached > margin[todo]]
            fooled = int((reached > 0).sum()) / len(reached)
            margin[todo] = torch.maximum(margin[todo], reached)
        return result


@torch.no_grad()
def _margin(model: nn.Module, x: Tensor, rows: Rows, rng: Rng, watch: Watch | None) -> tuple[Tensor, int]:
    """The largest wrong logit minus the true one, (b,), computed by the model itself, and the number of classes."""
    found, classes = [x.new_zeros(0)], 0
    with frozen(model, rng) as view:
        for ids in micro_batches(x):
            out: Outputs = view.outputs(x[ids])
            part, classes = rows.take(ids), out.logits.shape[1]
            check_outputs(part, out.logits)
            found.append(logit_difference(out, part).nan_to_num(nan=-torch.inf))
            if watch is not None:
                watch(part, x[ids], found[-1], Cost(forwards=len(ids)))
    return torch.cat(found), classes
