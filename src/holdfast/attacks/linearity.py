"""Climbing to where a model is least linear."""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from holdfast.attacks._ascent import check, check_labels, gradient, one_of
from holdfast.attacks._rules import scaled
from holdfast.attacks.pgd import PGD, Steps
from holdfast.contracts import Cost, Rows, Watch
from holdfast.crafting import microbatch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import frozen
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.losses.linearity import linearity_gap
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Linearity:
    """Climb |l(x + d) - l(x) - d·grad l(x)|, l the cross entropy: what LLR crafts in training (Qin et al. 2019).

    It does not aim at fooling. What a model holds under it, beside what it holds under a strong attack, tells whether
    training against it taught more than to resist it. As in training it starts at random and returns the last point;
    unlike there, the model is in eval mode.
    """

    threat: Threat
    steps: int = 10
    step: float | None = None
    rule: Steps = "steepest"

    def __post_init__(self) -> None:
        one_of("rule", self.rule, get_args(Steps))
        _ = self._climb  # a bad combination is refused where it is made

    @property
    def _climb(self) -> PGD:
        return PGD(
            threat=self.threat, steps=self.steps, step=self.step, rule=self.rule, loss=linearity_gap, keep="last"
        )

    def at(self, eps: float) -> "Linearity":
        """The same attack at another eps, with the step size in proportion."""
        return replace(self, threat=replace(self.threat, eps=eps), step=scaled(self.step, self.threat, eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """The points found for x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        with arithmetic("float32"):  # two passes over nearly the same point differ by less than bfloat16 can tell
            return self._climb(model, x, _expanded(model, x, rows, rng, watch), rng=rng, watch=watch)


def _expanded(model: nn.Module, x: Tensor, rows: Rows, rng: Rng, watch: Watch | None) -> Rows:
    """The rows with l's linear expansion at x, worked out some samples at a time."""
    losses, slopes = [x.new_zeros(0)], [x[:0]]
    with frozen(model, rng.fork("clean")) as view, torch.inference_mode(False), torch.enable_grad():
        for some in torch.split(torch.arange(len(x), device=x.device), microbatch.size()):
            here, few = x[some].detach().clone().requires_grad_(), rows.take(some)
            out = view.outputs(here)
            check_labels(few.y, out.logits.shape[1])
            loss = cross_entropy(out, few)
            slopes.append(gradient(loss, here))
            losses.append(loss.detach())
            if watch is not None:
                watch(few, here.detach(), loss.detach(), Cost(len(here), len(here)))
    given = {**rows.given, "x": x.detach(), "loss": torch.cat(losses), "gradient": torch.cat(slopes)}
    return Rows(rows.y, rows.index, given)
