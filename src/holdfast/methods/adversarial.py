"""Adversarial training."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Attack, Batch, Meter, Needs, Terms
from holdfast.methods._craft import check_settings, checked, craft, passes, warmed
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """Cross entropy on adversarial samples only (AT, Madry et al. 2018).

    The attack runs with batch norm in eval mode, or with ``batch_statistics`` as in train mode: it normalizes by the
    statistics of the batch and updates the running ones at every step, as the authors' code does and the AT baseline of
    the TLA authors' code. The eps of the attack grows linearly from 0 over the first ``warmup`` share of training.
    ``smoothing`` is label smoothing.
    """

    attack: Attack
    warmup: float = 0.0
    smoothing: float = 0.0
    batch_statistics: bool = False
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        meter = Meter()
        attack = warmed(self.attack, progress, self.warmup)
        x_adv = craft(attack, model, batch, rng, meter, batch_statistics=self.batch_statistics)
        out = adapt(model).outputs(x_adv)
        total = mean_cross_entropy(model, out, batch.rows(), self.smoothing)
        return Terms(total, {"cross_entropy": total}, meter.cost + passes(batch), (out,))
