"""Fast adaptive boundary attack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import get_args

import torch
from torch import Tensor

from holdfast.attacks._ascent import FEW
from holdfast.attacks._boundary import BoundaryAttack, Closest, Probe, Run, aims, column
from holdfast.attacks._checks import at_least_one, between, norm_of, one_of
from holdfast.attacks._hyperplane import DUAL, shortest_to
from holdfast.contracts import Keep, Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

_LEAST = 1e-8  # the shortest length in the weights of the two projections


@dataclass(frozen=True, kw_only=True)
class FAB(BoundaryAttack):
    """The closest misclassified point, by projections onto linearized decision boundaries (Croce and Hein 2020).

    Each step projects the iterate and x onto the linearized boundary within the box, goes ``eta`` times as far, and
    averages both with a weight of at most ``alpha_max`` for x. After a success the next step starts from ``beta`` times
    the perturbation. By default the attack aims at the ``targets`` classes with the largest logits at x, as in
    AutoAttack (nine, or all if there are fewer), one backward pass per step and class. ``targets=0`` is the untargeted
    form: it linearizes the boundaries to all classes, one backward pass each, and goes to the nearest. In both, any
    misclassification counts. ``targeted=True`` aims at the ``target`` of the rows, and only that class counts.

    A result farther away than eps is replaced by x. ``keep="closest"`` runs all steps, so that one run covers every
    eps; ``keep="fooled"`` stops a sample at the success within eps of its first class that has one. Restarts begin at
    random, within half of eps or of the distance of the best point if that is shorter; a sample without either is not
    restarted.
    """

    threat: Threat
    steps: int = 100
    restarts: int = 1
    targets: int | None = None
    targeted: bool = False
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    keep: Keep = "closest"

    def __post_init__(self) -> None:
        norm_of("fab", self.threat, tuple(DUAL))
        one_of("keep", self.keep, get_args(Keep))
        if self.keep not in ("closest", "fooled"):
            raise ValueError(f'keep is "{self.keep}" but fab looks for short perturbations; give "closest" or "fooled"')
        at_least_one(steps=self.steps, restarts=self.restarts)
        between("alpha_max", self.alpha_max, 0, 1)
        between("eta", self.eta, 1, 2)
        between("beta", self.beta, 0, 1)
        between("targets", self.targets or 0, 0, inf)
        if self.targeted and self.targets is not None:
            raise ValueError("targeted=True aims at the target of each row; leave out the number of targets")

    @property
    def _passes(self) -> int:
        return self.steps * self.restarts * max(1, self.targets or 1)

    def _search(self, probe: Probe, closest: Closest, logits: Tensor, rows: Rows, rng: Rng) -> None:
        classes = torch.stack(aims(logits, rows, self.targets, self.targeted), 1)
        # a success of the first aim spares the others
        alone = 1 if self.keep == "fooled" and len(rows) > FEW else classes.shape[1]
        for restart in range(self.restarts):
            for begin, some in ((0, classes[:, :alone]), (alone, classes[:, alone:])):
                rngs = [rng.fork("start").fork(begin + aim).fork(restart) for aim in range(some.shape[1])]
                for run in self._starts(closest, rows, some, restart, rngs):
                    self._run(probe, closest, run, some.shape[1])

    def _starts(
        self, closest: Closest, rows: Rows, classes: Tensor, restart: int, rngs: Sequence[Rng]
    ) -> Iterator[Run]:
        """The micro-batches of a run: the samples that it can improve, at their starting points, once for each aim."""
        left = ~closest.inside() if self.keep == "fooled" else closest.length > 0
        radius = 0.5 * closest.length.clamp_max(self.threat.eps)
        if restart:
            left &= radius.isfinite()
        for run in closest.runs(rows, classes, left) if rngs else ():
            if restart:
                noise = run.x.reshape(-1, len(rngs), *run.x.shape[1:]).clone()
                for aim, rng in enumerate(rngs):
                    ids, index = (numbers[aim :: len(rngs)] for numbers in (run.ids, run.rows.index))
                    noise[:, aim] = self.threat.norm.sample(noise[:, aim], radius[ids], rng.at(index))
                run = run._replace(x_adv=(run.x + noise.flatten(0, 1)).clamp(self.threat.low, self.threat.high))
            yield run

    def _run(self, probe: Probe, closest: Closest, run: Run, aims: int) -> None:
        """Search from all starting points of a micro-batch, in which the aims of a sample follow each other."""
        whole, found = run.ids[::aims], Closest(self.threat, run.x)
        run = run._replace(ids=torch.arange(len(run.ids), device=run.ids.device))  # places in ``found``
        for _ in range(self.steps):
            run = run._replace(x_adv=self._step(run, *probe.nearest_boundary(run)))
            wanted = probe.reached(run)
            found.offer(run.ids, run.x_adv, wanted)
            back = run.x + self.beta * (run.x_adv - run.x)
            run = run._replace(x_adv=torch.where(column(wanted, back), back, run.x_adv))
            if self.keep == "fooled" and wanted.any():
                over = found.inside().reshape(-1, aims).cummax(1).values.flatten()  # later aims are not needed either
                run = run.take(~over[run.ids])
                if not len(run.ids):
                    break
        reached = (found.inside() if self.keep == "fooled" else found.length < inf).reshape(-1, aims)
        if self.keep == "fooled":  # the first aim that succeeded, as if they had run one after the other
            reached &= reached.cumsum(1) == 1
        for aim in range(aims):
            closest.offer(whole, found.point[aim::aims], reached[:, aim])

    def _step(self, run: Run, value: Tensor, slope: Tensor) -> Tensor:
        """The next iterate: the average of the two projections onto the linearized boundary, with overshoot."""
        x, x_adv, norm, box = run.x, run.x_adv, self.threat.norm, (self.threat.low, self.threat.high)
        at_x = value + (slope * (x - x_adv)).flatten(1).sum(1)
        near = shortest_to(x_adv, slope, value, *box, norm.name)
        far = shortest_to(x, slope, at_x, *box, norm.name)
        lengths = [norm.length(d).clamp_min(_LEAST) for d in (near, far)]
        share = column((lengths[0] / (lengths[0] + lengths[1])).clamp_max(self.alpha_max), x)
        return ((1 - share) * (x_adv + self.eta * near) + share * (x + self.eta * far)).clamp(*box)
