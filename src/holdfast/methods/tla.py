"""Triplet-loss adversarial training."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Meter, Needs, Outputs, Terms
from holdfast.losses.consistency import feature_matching
from holdfast.losses.metric import feature_mean_square, feature_norm, triplet
from holdfast.methods._craft import check_margin, check_settings, checked, craft, passes, warmed
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.methods._triplets import Negative, negatives, positives, search_cost
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class TLA:
    """Adversarial training that keeps the features of adversarial samples near those of their class (Mao et al. 2019).

    CE(x_adv) + lambda1·triplet + lambda2·norm, with the adversarial sample as anchor, a clean sample of its class as
    positive and the nearest clean sample of another class in a random pool as negative. The attack maximizes the
    classification loss only.

    Defaults follow the paper. Options reproduce its variants and the authors' code where it differs:

    - ``anchor="clean"``: the paper's TLA-SA, which swaps anchor and positive. ``negative="random"``: its TLA-RN.
    - ``positive``: another sample of the ``"class"`` (paper; the code for MNIST), the clean ``"copy"`` of the
      adversarial sample, or a triplet with each (``"both"``; the code for CIFAR-10 and Tiny-ImageNet).
    - ``copy_margin``: the margin of the triplet with the copy, None for ``margin`` (the code for Tiny-ImageNet).
    - ``matching``: weight of the squared distance between the features of the adversarial sample and of its clean copy
      (the code for Tiny-ImageNet).
    - ``noise``: uniform noise of size eps on all clean ``"images"`` (paper), only on the ``"copy"`` (code), ``"none"``.
    - ``norm``: ``"length"`` for the sum of feature lengths, weighted by lambda2 (paper); ``"mean_square"`` for the mean
      square of the features, weighted by lambda1·lambda2 (code).
    - ``signed_search``: search negatives by the cosine (code) instead of its absolute value (paper).
    - ``layer``: the module whose output is the representation, ``"logits"``, or None for the penultimate layer.
    - ``batch_statistics``: batch norm runs as in train mode while crafting (the code's AT, but not its TLA; see AT).

    As in the code, anchor, positive and negative take separate passes with separate batch statistics, features for the
    search are computed in eval mode, and two triplets with one anchor share its negative.
    """

    attack: Attack
    lambda1: float = 0.5
    lambda2: float = 0.001
    margin: float = 0.05
    copy_margin: float | None = None
    anchor: Literal["adversarial", "clean"] = "adversarial"
    positive: Literal["class", "copy", "both"] = "class"
    negative: Negative = "nearest"
    pool: int = 50
    noise: Literal["images", "copy", "none"] = "images"
    norm: Literal["length", "mean_square"] = "length"
    signed_search: bool = False
    matching: float = 0.0
    layer: str | None = None
    warmup: float = 0.0
    smoothing: float = 0.0
    batch_statistics: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "lambda1", "lambda2", "matching")
        check_margin(self.copy_margin or 0.0, "copy_margin")
        if self.positive == "class" and (self.matching or self.copy_margin is not None):
            raise ValueError(
                'matching and copy_margin are about the clean copy, so they need positive="copy" or "both"'
            )

    @property
    def needs(self) -> Needs:
        """A pool, one positive per sample unless the clean copy is the only positive, and features at ``layer``."""
        return Needs(positive=self.positive != "copy", pool=self.pool, features=self.layer is None)

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        attack = warmed(self.attack, progress, self.warmup)
        batch = self._noisy(attack, batch, rng)
        clean = self._clean(attack, batch, rng)
        meter = Meter()
        x_adv = craft(attack, model, batch, rng, meter, batch_statistics=self.batch_statistics)
        adversarial = adapt(model).outputs(x_adv, self.layer)
        entropy = mean_cross_entropy(model, adversarial, batch.rows(), self.smoothing)
        total, parts = entropy, {"cross_entropy": entropy}
        cost, negative = meter.cost + passes(batch, 1 + len(clean)), None
        for name, x in clean.items():
            positive = adapt(model).outputs(x, self.layer)
            if negative is None or self.anchor == "clean":  # triplets with one anchor share its negative
                anchors = x_adv if self.anchor == "adversarial" else x
                chosen = self._negatives(model, batch, anchors, rng.fork(name))
                negative = adapt(model).outputs(chosen, self.layer)
                cost = cost + passes(batch) + search_cost(batch, self.negative)
            weighted, more = self._triplet(batch, adversarial, positive, negative, name)
            total, parts = total + weighted, parts | more
        return Terms(total, parts, cost, (adversarial,))

    def _noisy(self, attack: Attack, batch: Batch, rng: Rng) -> Batch:
        """The batch with noise on its positives and its pool, if the setting ``noise`` asks for it."""
        if self.noise != "images" or batch.pool is None:
            return batch
        pool = batch.pool
        x = attack.threat.sample(pool.x, rng.fork("pool noise"))
        positive = batch.positive
        if positive is not None:
            positive = attack.threat.sample(positive, rng.fork("positive noise"))
        return Batch(batch.x, batch.y, batch.index, positive, Batch(x, pool.y, pool.index))

    def _clean(self, attack: Attack, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """The clean samples that are paired with the adversarial ones, by the name of their triplet."""
        clean: dict[str, Tensor] = {}
        if self.positive != "copy":
            clean["triplet"] = positives(batch)
        if self.positive != "class":
            noisy = self.noise != "none"
            clean["copy_triplet"] = attack.threat.sample(batch.x, rng.fork("copy noise")) if noisy else batch.x
        return clean

    def _negatives(self, model: nn.Module, batch: Batch, anchors: Tensor, rng: Rng) -> Tensor:
        return negatives(model, batch, anchors, rng, search=self.negative, layer=self.layer, signed=self.signed_search)

    def _triplet(
        self, batch: Batch, adversarial: Outputs, clean: Outputs, negative: Outputs, name: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the terms of one triplet, and the terms by name."""
        is_copy = name == "copy_triplet"
        anchor, positive = (adversarial, clean) if self.anchor == "adversarial" else (clean, adversarial)
        rows = batch.rows({"positive": positive.features, "negative": negative.features})
        margin = self.margin if not is_copy or self.copy_margin is None else self.copy_margin
        hinge = triplet(anchor, rows, margin=margin).mean()
        if self.norm == "length":
            size = feature_norm(anchor, rows).mean()
            total = self.lambda1 * hinge + self.lambda2 * size
        else:
            size = feature_mean_square(anchor, rows).mean()
            total = self.lambda1 * (hinge + self.lambda2 * size)
        parts = {name: hinge, f"{name}_norm": size}
        if is_copy and self.matching:
            match = feature_matching(adversarial, batch.rows({"features": clean.features})).mean()
            total, parts = total + self.matching * match, parts | {"matching": match}
        return total, parts
