"""The local linearity regularizer."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import nn

from holdfast.contracts import Attack, Batch, Cost, Loss, Meter, Needs, Rows, Terms
from holdfast.losses.linearity import gradient_norm, linear_change, linearity_gap
from holdfast.methods._craft import check_settings, checked, climb, climbing, warmed
from holdfast.methods._cross_entropy import input_gradient, mean_cross_entropy
from holdfast.models.batch_statistics import record_batch_statistics, reuse_batch_statistics
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class LLR:
    """l(x) + ``lambda1``·gap + ``mu``·|d·grad l(x)|, at the d where the gap is largest (Qin et al. 2019).

    l is the cross entropy and gap = |l(x + d) - l(x) - d·grad l(x)|. The attack maximizes the gap from a random start
    (at d = 0 the gap has no gradient); the attack's loss and start are replaced. The authors' code takes 10 steps of
    Adam (``rule="adam"``, step 0.1) and uses these default weights; the authors report that 2 steps also work.

    ``slope`` is the last term, which penalizes how fast l changes around x: ``"dot"`` for |d·grad l(x)|, ``"norm"`` for
    the looser bound ||grad l(x)||, which the authors tried too. ``mu=0`` is their ablation with the gap alone.

    As in that code, perturbed passes, including those of the attack, use the batch statistics of the clean pass, and
    only the clean pass updates the running averages. Unlike there, the attack follows the whole gradient of the gap;
    that code leaves out the part through d·grad l(x). With piecewise linear activations such as ReLU the only curvature
    is that of the softmax: the paper trains with softplus.
    """

    attack: Attack
    lambda1: float = 2.0
    mu: float = 0.6
    slope: Literal["dot", "norm"] = "dot"
    warmup: float = 0.0
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self, "lambda1", "mu")
        climbing(self.attack, self._gap, "random")

    @property
    def _gap(self) -> Loss:
        return partial(linearity_gap, smoothing=self.smoothing)

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        attack = climbing(warmed(self.attack, progress, self.warmup), self._gap, "random")
        meter = Meter()
        with record_batch_statistics(model) as recorded:
            clean, loss, gradient = input_gradient(model, batch, batch.x, self.smoothing)
        # the linear expansion of l at x, through which gradients flow
        rows = batch.rows({"x": batch.x, "loss": loss, "gradient": gradient})
        with reuse_batch_statistics(recorded):
            x_adv = climb(attack, model, batch, _detached(rows), rng, meter)
            moved = adapt(model).outputs(x_adv)
        entropy = mean_cross_entropy(model, clean, rows, self.smoothing)
        gap = self._gap(moved, rows).mean()
        slope = (linear_change if self.slope == "dot" else gradient_norm)(moved, rows).mean()
        parts = {"cross_entropy": entropy, "linearity_gap": gap, "slope": slope}
        # clean: one forward, one backward to the input, and the double backward, which goes back through both of these;
        # perturbed: one forward and one backward
        cost = meter.cost + Cost(2 * len(batch), 4 * len(batch))
        return Terms(entropy + self.lambda1 * gap + self.mu * slope, parts, cost, (clean, moved))


def _detached(rows: Rows) -> Rows:
    return Rows(rows.y, rows.index, {name: value.detach() for name, value in rows.given.items()})
