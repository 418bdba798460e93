"""Adversarial logit pairing."""

from dataclasses import dataclass

import torch
from torch import nn

from holdfast.contracts import Attack, Batch, Meter, Needs, Outputs, Rows, Terms
from holdfast.losses.consistency import logit_pairing
from holdfast.methods._craft import check_crafting, check_weight, craft, passes, warmed
from holdfast.methods._entropy import mean_entropy
from holdfast.methods._sphere import hypersphere_of
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class ALP:
    """Half cross entropy on each of clean and adversarial, plus ``weight`` times the squared logit difference.

    (Kannan et al. 2018.) As in the authors' code both halves go through the model in one pass, so batch norm sees
    them together, and the difference is a mean over classes. They crafted toward the least likely class; here, as in
    the TLA paper's baseline, the attack is whatever is given, untargeted by default.
    """

    attack: Attack
    weight: float = 0.5
    warmup: float = 0.0
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_crafting(self.attack, self.warmup)
        check_weight("weight", self.weight)

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        meter = Meter()
        x_adv = craft(warmed(self.attack, progress, self.warmup), model, batch, rng, meter)
        both = adapt(model).outputs(torch.cat([batch.x, x_adv]))
        rows = Rows(torch.cat([batch.y, batch.y]), torch.cat([batch.index, batch.index]))
        entropy = mean_entropy(model, both, rows, self.smoothing)
        clean, adversarial = _halves(both, len(batch))
        pairing = logit_pairing(adversarial, Rows(batch.y, batch.index, {"logits": clean.logits})).mean()
        if (head := hypersphere_of(model, both)) is not None:
            pairing = pairing / head.scale**2  # the cosines are paired, not what the head makes of them
        parts = {"cross_entropy": entropy, "logit_pairing": pairing}
        total = entropy + self.weight * pairing
        return Terms(total, parts, meter.cost + passes(batch, 2), (clean, adversarial))


def _halves(both: Outputs, n: int) -> tuple[Outputs, Outputs]:
    clean, adversarial = zip(*((part[:n], part[n:]) for part in both), strict=True)
    return Outputs(*clean), Outputs(*adversarial)
