"""Repeated steps to the decision boundary of the linearized model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._boundary import Closest, Probe, Run, differentiable, ranked
from holdfast.attacks._checks import at_least_one, between, check, norm_of
from holdfast.attacks._hyperplane import DUAL, shortest_to
from holdfast.contracts import Rows, Watch
from holdfast.geometry import Threat
from holdfast.rng import Rng

_BEYOND = 1e-6  # how far behind the boundary steps end, in input units: at a tie the distance to it is zero


@dataclass(frozen=True, kw_only=True)
class DeepFool(StandaloneAttack):
    """Steps to the nearest linearized boundary until the input is misclassified (Moosavi-Dezfooli et al. 2016).

    Of the ``candidates`` classes with the largest logits at x, the label included, the nearest is chosen in every step,
    at the price of one backward pass for each. The sum of the steps is taken 1 + ``overshoot`` times. Steps stay in the
    box: they go the shortest way to the hyperplane inside it. A result farther away than eps is replaced by x.
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

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        x = x.detach()
        if not len(x):
            return x.clone()
        with differentiable(model, x, rng, self.steps) as view:
            probe, closest = Probe(view, self.threat, False, watch), Closest(self.threat, x)
            logits = probe.clean(closest, rows)
            classes = ranked(logits, rows.y, min(self.candidates, logits.shape[1]) - 1)
            for run in closest.runs(rows, classes, closest.length > 0):
                self._run(probe, closest, run)
        return closest.result()

    def _run(self, probe: Probe, closest: Closest, run: Run) -> None:
        total = torch.zeros_like(run.x)
        for _ in range(self.steps):
            total = total + self._step(run, *probe.nearest_boundary(run))
            x_adv = (run.x + (1 + self.overshoot) * total).clamp(self.threat.low, self.threat.high)
            run = run._replace(x_adv=x_adv)
            wanted = probe.reached(run)
            closest.offer(run.ids, x_adv, wanted)
            run, total = run.take(~wanted), total[~wanted]
            if not len(run.ids):
                return

    def _step(self, run: Run, value: Tensor, slope: Tensor) -> Tensor:
        """The shortest way to just behind the linearized boundary."""
        norm = self.threat.norm.name
        beyond = _BEYOND * torch.linalg.vector_norm(slope.flatten(1), DUAL[norm], dim=1).to(value)
        return shortest_to(run.x_adv, slope, value - beyond, self.threat.low, self.threat.high, norm)
