"""Adversarial logit pairing."""

from dataclasses import dataclass

import torch
from torch import nn

from holdfast.contracts import Attack, Batch, Meter, Needs, Outputs, Rows, Terms
from holdfast.losses.consistency import logit_pairing
from holdfast.methods._craft import check_settings, checked, craft, passes, warmed
from holdfast.methods._cross_entropy import hypersphere_of, mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class ALP:
    """Cross entropy on clean and adversarial samples plus ``weight`` times the squared difference of their logits.

    (Kannan et al. 2018.) As in the authors' code, clean and adversarial samples form one batch: they share batch
    statistics and the mean of the cross entropy, and the squared difference is a mean over classes. The authors craft
    toward the least likely class; here, as in the baseline of the TLA paper, any attack can be given, and attacks are
    untargeted by default. ``batch_statistics``: batch norm runs as in train mode while crafting (see AT).
    """

    attack: Attack
    weight: float = 0.5
    warmup: float = 0.0
    smoothing: float = 0.0
    batch_statistics: bool = False
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self, "weight")

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        meter = Meter()
        attack = warmed(self.attack, progress, self.warmup)
        x_adv = craft(attack, model, batch, rng, meter, batch_statistics=self.batch_statistics)
        both = adapt(model).outputs(torch.cat([batch.x, x_adv]))
        rows = Rows(torch.cat([batch.y, batch.y]), torch.cat([batch.index, batch.index]))
        entropy = mean_cross_entropy(model, both, rows, self.smoothing)
        clean, adversarial = _halves(both, len(batch))
        pairing = logit_pairing(adversarial, batch.rows({"logits": clean.logits})).mean()
        if (head := hypersphere_of(model, both)) is not None:
            pairing = pairing / head.scale**2  # as in the HE authors' code, the cosines are paired before scaling
        parts = {"cross_entropy": entropy, "logit_pairing": pairing}
        total = entropy + self.weight * pairing
        return Terms(total, parts, meter.cost + passes(batch, 2), (clean, adversarial))


def _halves(both: Outputs, n: int) -> tuple[Outputs, Outputs]:
    clean, adversarial = zip(*((part[:n], part[n:]) for part in both), strict=True)
    return Outputs(*clean), Outputs(*adversarial)
