"""The probability margin attack."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from holdfast.attacks._ascent import Loop
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._rules import Annealed, default_step
from holdfast.contracts import Keep, Outputs, Rows
from holdfast.geometry import Threat
from holdfast.losses.classification import probability_margin, toward_target, true_and_wrong_probability


@dataclass(frozen=True, kw_only=True)
class PMA(LoopAttack):
    """Maximize the largest wrong probability minus the true one, in two runs of two phases (Xie et al. 2024).

    The first half of the first run minimizes the true probability, that of the second run maximizes the largest wrong
    one; the other halves maximize the difference. The very first step goes the other way, toward the true class. In
    each half the step size falls from 2·eps to zero by half a cosine. ``steps`` is the number of steps of a run, and
    ``restarts`` repeats both runs. ``rescale`` divides the logits by the difference of the two largest, a constant to
    the gradient, because large logits saturate the softmax and its gradient vanishes; False is the published form.
    """

    threat: Threat
    steps: int = 100
    restarts: int = 1
    rescale: bool = True
    keep: Keep = "fooled"
    targeted: bool = False

    @property
    def loop(self) -> Loop:
        """Steepest steps with decaying sizes on a loss that depends on the step and the run."""
        default_step(self.threat.eps, self.threat, self.steps)  # refuses an infinite eps
        loss, score = self._loss, partial(probability_margin, rescale=self.rescale)
        return Loop(
            threat=self.threat,
            loss=toward_target(loss) if self.targeted else loss,
            rule=Annealed(self._size),
            keep=self.keep,
            start="random",
            steps=self.steps,
            restarts=2 * self.restarts,
            targeted=self.targeted,
            clock=True,
            score=toward_target(score) if self.targeted else score,
        )

    def _loss(self, out: Outputs, rows: Rows) -> Tensor:
        true, wrong = true_and_wrong_probability(out.logits, rows.y, self.rescale)
        step, odd = rows["step"], rows["run"] % 2 == 1
        first_half = step < self.steps // 2
        of_true = torch.where(step == 0, 1.0, torch.where(first_half & odd, 0.0, -1.0))
        of_wrong = torch.where((step == 0) | (first_half & ~odd), 0.0, 1.0)
        return of_wrong.to(wrong) * wrong + of_true.to(true) * true

    def _size(self, t: Tensor) -> Tensor:
        """As in the authors' code, the size is reset one step after the loss has changed."""
        half = self.steps // 2
        phase = torch.where(t > half, t - half, t) - 1
        return self.threat.eps * (1 + (torch.pi * phase / (self.steps - half)).cos())
