"""Repeated steps to the decision boundary of the linearized model."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from holdfast.attacks._boundary import BoundaryAttack, Closest, Probe, Run, ranked
from holdfast.attacks._checks import at_least_one, between, norm_of
from holdfast.attacks._hyperplane import DUAL, shortest_to
from holdfast.contracts import Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

_BEYOND = (
    1e-4  # added to every distance, as in the code of the paper: steps that shrink with it end before the boundary
)


@dataclass(frozen=True, kw_only=True)
class DeepFool(BoundaryAttack):
    """Steps to the nearest linearized boundary until the input is misclassified (Moosavi-Dezfooli et al. 2016).

    Of the ``candidates`` classes with the largest logits at x, the label included, the nearest is chosen in every step,
    at the price of one backward pass for each. Steps go 1 + ``overshoot`` times as far and are clipped to the box. A
    result farther away than eps is replaced by x.
    """

    threat: Threat
    steps: int = 50
    candidates: int = 10
    overshoot: float = 0.02
    keep = "closest"

    def __post_init__(self) -> None:
        norm_of("deepfool", self.threat, ("linf", "l2"))
        at_least_one(steps=self.steps)
        between("overshoot", self.overshoot, 0, 1)
        if self.candidates < 2:
            raise ValueError(f"candidates is {self.candidates} but it must be two or more: the label and another class")

    @property
    def _passes(self) -> int:
        return self.steps

    def _search(self, probe: Probe, closest: Closest, logits: Tensor, rows: Rows, rng: Rng) -> None:
        classes = ranked(logits, rows.y, min(self.candidates, logits.shape[1]) - 1)
        for run in closest.runs(rows, classes, closest.length > 0):
            self._run(probe, closest, run)

    def _run(self, probe: Probe, closest: Closest, run: Run) -> None:
        for _ in range(self.steps):
            run = run._replace(x_adv=self._step(run, *probe.nearest_boundary(run)))
            wanted = probe.reached(run)
            closest.offer(run.ids, run.x_adv, wanted)
            run = run.take(~wanted)
            if not len(run.ids):
                return

    def _step(self, run: Run, value: Tensor, slope: Tensor) -> Tensor:
        """The next iterate, just behind the linearized boundary."""
        norm = self.threat.norm.name
        beyond = _BEYOND * torch.linalg.vector_norm(slope.flatten(1), DUAL[norm], dim=1).to(value)
        # clipping the step follows a curved boundary better than the shortest way inside the box, which is longer
        step = shortest_to(run.x_adv, slope, value - beyond, -inf, inf, norm)
        return (run.x_adv + (1 + self.overshoot) * step).clamp(self.threat.low, self.threat.high)
