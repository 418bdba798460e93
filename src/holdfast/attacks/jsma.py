"""Jacobian-based saliency map attack."""

from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.attacks._boundary import BoundaryAttack, Closest, Probe, Run, aims
from holdfast.attacks._checks import at_least_one, between, norm_of, one_of
from holdfast.attacks._pairs import best_pairs
from holdfast.contracts import Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

Saliency = Literal["pair", "relative"]


@dataclass(frozen=True, kw_only=True)
class JSMA(BoundaryAttack):
    """Move the pair of features with the largest saliency by ``theta``, again and again (Papernot et al. 2016).

    The saliency of a pair is the increase of the target logit times the decrease of the sum of the others; both must be
    positive. The pair is exact: no other pair has a larger one. ``saliency="relative"`` takes the two features that
    raise the target logit most beside the mean of the logits instead, also where the others rise too; it reaches more
    targets. Features at the edge of the box are left out. A sample ends when it has the wanted label, no pair is
    salient, the next pair would change more than eps pixels, or after ``steps`` pairs. Every channel of an image is a
    feature of its own, while the norm counts pixels.

    ``targeted=True`` aims at the ``target`` of the rows. Without it the attack aims at the ``targets`` classes with the
    largest logits at x in turn (nine, or all if there are fewer), any misclassification counts, and the result is the
    shortest success. ``theta`` is negative to decrease features.
    """

    threat: Threat
    steps: int = 1000
    theta: float = 1.0
    saliency: Saliency = "pair"
    targets: int | None = None
    targeted: bool = False
    keep = "closest"

    def __post_init__(self) -> None:
        norm_of("jsma", self.threat, ("l0",))
        at_least_one(steps=self.steps)
        one_of("saliency", self.saliency, get_args(Saliency))
        if not (isfinite(self.theta) and self.theta):
            raise ValueError(f"theta is {self.theta} but features must move; give a finite number other than zero")
        between("targets", 1 if self.targets is None else self.targets, 1, inf)
        if self.targeted and self.targets is not None:
            raise ValueError("targeted=True aims at the target of each row; leave out the number of targets")

    @property
    def _passes(self) -> int:
        return self.steps * (self.targets or 1)

    def _search(self, probe: Probe, closest: Closest, logits: Tensor, rows: Rows, rng: Rng) -> None:
        for classes in aims(logits, rows, self.targets, self.targeted):
            for run in closest.runs(rows, classes, closest.length > 0):
                self._run(probe, closest, run)

    def _run(self, probe: Probe, closest: Closest, run: Run) -> None:
        for _ in range(self.steps):
            out, _, (up, total) = probe.gradients(run, partial(_target_and_sum, classes=run.classes))
            wanted = run.rows.reached(out.logits.argmax(1), self.targeted)
            closest.offer(run.ids, run.x_adv, wanted)
            x_adv, salient = self._move(run.x_adv, up, up - total, out.logits.shape[1])
            # no pair beyond eps, and none beyond the shortest success of the runs before
            limit = (closest.length[run.ids] - 1).clamp_max(self.threat.eps)
            going = salient & ~wanted & (self.threat.norm.length(x_adv - run.x) <= limit)
            run = run._replace(x_adv=x_adv).take(going)
            if not len(run.ids):
                return
        closest.offer(run.ids, run.x_adv, probe.reached(run))

    def _move(self, x_adv: Tensor, gain: Tensor, fall: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """The iterates with the best pair moved, and whether there is one; ``fall`` is minus the others."""
        flat = x_adv.flatten(1)
        movable = flat < self.threat.high if self.theta > 0 else flat > self.threat.low
        sign = 1 if self.theta > 0 else -1
        gain, fall = (torch.where(movable, sign * part.flatten(1), -inf) for part in (gain, fall))
        if self.saliency == "relative" and flat.shape[1] > 1:
            rise, pairs = ((classes - 1) * gain + fall).topk(2, dim=1)
            salient = rise.sum(1) > 0
        else:
            pairs, salient = best_pairs(gain, fall)
        moved = flat.scatter_add(1, pairs, torch.full_like(flat[:, :2], self.theta))
        return moved.clamp(self.threat.low, self.threat.high).reshape(x_adv.shape), salient


def _target_and_sum(logits: Tensor, classes: Tensor) -> Tensor:
    return torch.cat([logits.gather(1, classes), logits.sum(1, keepdim=True)], 1)
