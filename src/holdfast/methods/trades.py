"""TRADES."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Cost, Meter, Needs, Terms
from holdfast.crafting.view import frozen
from holdfast.losses.consistency import kl_divergence
from holdfast.methods._craft import check_settings, checked, climb, climbing, passes, warmed
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class TRADES:
    """Cross entropy on clean samples plus ``beta`` times KL(p(x) || p(x_adv)) (Zhang et al. 2019).

    The attack maximizes the same divergence from x + 0.001·N(0, I), because at x itself the divergence has no gradient;
    the attack's loss and start are replaced. In the training loss gradients flow through both predictions. As in the
    authors' code, clean and adversarial samples take separate passes with separate batch statistics, and the attack
    runs in eval mode. ``beta`` is 6 for CIFAR-10 and 1 for MNIST in that code.
    """

    attack: Attack
    beta: float = 6.0
    warmup: float = 0.0
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self, "beta")
        climbing(self.attack, kl_divergence, "near")

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        meter = Meter()
        x_adv = self._craft(model, batch, progress, rng, meter)
        clean, adversarial = adapt(model).outputs(batch.x), adapt(model).outputs(x_adv)
        entropy = mean_cross_entropy(model, clean, batch.rows(), self.smoothing)
        divergence = kl_divergence(adversarial, batch.rows({"logits": clean.logits})).mean()
        parts = {"cross_entropy": entropy, "kl_divergence": divergence}
        cost = meter.cost + Cost(forwards=len(batch)) + passes(batch, 2)
        return Terms(entropy + self.beta * divergence, parts, cost, (clean, adversarial))

    def _craft(self, model: nn.Module, batch: Batch, progress: float, rng: Rng, meter: Meter) -> Tensor:
        """The inner maximization; the clean prediction in eval mode is computed once, not at every step."""
        attack = climbing(warmed(self.attack, progress, self.warmup), kl_divergence, "near")
        with torch.no_grad(), frozen(model, rng.fork("clean")) as view:
            logits = view.outputs(batch.x).logits
        return climb(attack, model, batch, batch.rows({"logits": logits}), rng, meter)
