"""The local linearity regularizer."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Loss, Meter, Needs, Outputs, Rows, Terms
from holdfast.losses.classification import cross_entropy
from holdfast.losses.linearity import gradient_norm, linear_change, linearity_gap
from holdfast.methods._craft import check_crafting, check_weight, climb, climbing, warmed
from holdfast.methods._entropy import mean_entropy
from holdfast.models.batch_statistics import record_batch_statistics, reuse_batch_statistics
from holdfast.models.classifier import adapt
from holdfast.rng import Rng

Slope = Literal["dot", "norm"]


@dataclass(frozen=True, kw_only=True)
class LLR:
    """l(x) + ``lambda1``·gap + ``mu``·|d·grad l(x)|, at the d where the gap is largest (Qin et al. 2019).

    l is the cross entropy and gap = |l(x + d) - l(x) - d·grad l(x)|. The attack climbs the gap from a random start
    (at d = 0 it has no gradient); its own loss and start are replaced. The authors' code takes 10 steps of Adam
    (``rule="adam"``, step 0.1) and its weights are these defaults; 2 steps do too. ``mu=0`` is the ablation with the
    gap alone, ``slope="norm"`` the one with the length of the gradient instead of the dot product.

    As in that code the perturbed passes, those of the attack too, are normalized by the statistics of the clean batch,
    and only the clean pass moves the running averages. Unlike there, climbing follows the whole gradient of the gap;
    that code leaves out the part through d·grad l(x). Activations without a second derivative, such as ReLU, leave
    the curvature to the softmax alone: the paper trains with softplus.
    """

    attack: Attack
    lambda1: float = 2.0
    mu: float = 0.6
    slope: Slope = "dot"
    warmup: float = 0.0
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_crafting(self.attack, self.warmup)
        check_weight("lambda1", self.lambda1)
        check_weight("mu", self.mu)
        if self.slope not in get_args(Slope):
            raise ValueError(f"slope is {self.slope!r} but it must be one of {', '.join(get_args(Slope))}")
        climbing(self.attack, self._gap, "random")

    @property
    def _gap(self) -> Loss:
        return partial(linearity_gap, smoothing=self.smoothing)

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        attack = climbing(warmed(self.attack, progress, self.warmup), self._gap, "random")
        meter = Meter()
        with record_batch_statistics(model) as recorded:
            clean, rows = self._expand(model, batch)
        with reuse_batch_statistics(recorded):
            x_adv = climb(attack, model, batch, _detached(rows), rng, meter)
            moved = adapt(model).outputs(x_adv)
        entropy = mean_entropy(model, clean, rows, self.smoothing)
        gap = self._gap(moved, rows).mean()
        slope = (linear_change if self.slope == "dot" else gradient_norm)(moved, rows).mean()
        parts = {"cross_entropy": entropy, "linearity_gap": gap, "slope": slope}
        # clean: there, back to the input, and back through both; perturbed: there and back
        cost = meter.cost + Cost(2 * len(batch), 4 * len(batch))
        return Terms(entropy + self.lambda1 * gap + self.mu * slope, parts, cost, (clean, moved))

    def _expand(self, model: nn.Module, batch: Batch) -> tuple[Outputs, Rows]:
        """The clean pass, and l's expansion there, through which gradients flow."""
        x = batch.x.detach().requires_grad_()
        clean = adapt(model).outputs(x)
        loss = cross_entropy(clean, Rows(batch.y, batch.index), smoothing=self.smoothing)
        # sum, not mean: a sample's gradient must not depend on the batch size
        (gradient,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
        return clean, Rows(batch.y, batch.index, {"x": batch.x, "loss": loss, "gradient": gradient})


def _detached(rows: Rows) -> Rows:
    given: dict[str, Tensor] = {name: value.detach() for name, value in rows.given.items()}
    return Rows(rows.y, rows.index, given)
