"""Maximize the nonlinearity of the loss around a sample."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.attacks._ascent import Loop, micro_batches
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._checks import check, check_outputs
from holdfast.attacks._gradients import gradient
from holdfast.attacks.pgd import PGD, Steps
from holdfast.contracts import Cost, Rows, Watch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import frozen
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.losses.linearity import linearity_gap
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Linearity(LoopAttack):
    """Maximize |l(x + d) - l(x) - d·grad l(x)|, l the cross entropy: the inner problem of LLR (Qin et al. 2019).

    It does not aim at misclassification. A model trained with LLR that is far more accurate under it than under PGD has
    learned to resist this attack and not much else. As in training, the attack starts at random and returns the last
    iterate; unlike in training, the model is in eval mode.
    """

    threat: Threat
    steps: int = 10
    step: float | None = None
    rule: Steps = "steepest"

    @property
    def loop(self) -> Loop:
        """The loop of PGD on the linearity gap."""
        return PGD(
            threat=self.threat, steps=self.steps, step=self.step, rule=self.rule, loss=linearity_gap, keep="last"
        ).loop

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Points near x where the loss is least linear."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        with arithmetic("float32"):  # losses at nearly equal points differ by less than the precision of bfloat16
            return self.loop(model, x, _expanded(model, x, rows, rng, watch), rng=rng, watch=watch)


def _expanded(model: nn.Module, x: Tensor, rows: Rows, rng: Rng, watch: Watch | None) -> Rows:
    """The rows with x, the loss at x and its input gradient, which define the linear expansion of the loss."""
    losses, gradients = [x.new_zeros(0)], [x[:0]]
    with frozen(model, rng.fork("clean")) as view, torch.inference_mode(False), torch.enable_grad():
        for ids in micro_batches(x):
            clean, part = x[ids].detach().clone().requires_grad_(), rows.take(ids)
            out = view.outputs(clean)
            check_outputs(part, out.logits)
            loss = cross_entropy(out, part)
            gradients.append(gradient(loss, clean))
            losses.append(loss.detach())
            if watch is not None:
                watch(part, clean.detach(), loss.detach(), Cost(len(clean), len(clean)))
    given = {**rows.given, "x": x.detach(), "loss": torch.cat(losses), "gradient": torch.cat(gradients)}
    return Rows(rows.y, rows.index, given)
