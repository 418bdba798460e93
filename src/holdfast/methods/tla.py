"""Triplet-loss adversarial training."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin

from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Meter, Needs, Outputs, Rows, Terms
from holdfast.losses.consistency import feature_matching
from holdfast.losses.metric import feature_mean_square, feature_norm, triplet
from holdfast.methods._craft import check_crafting, check_weight, craft, passes, warmed
from holdfast.methods._entropy import mean_entropy
from holdfast.methods._triplets import Negative, negatives, positives, search_cost
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class TLA:
    """Adversarial training whose representation keeps adversarial samples near their class (Mao et al. 2019).

    CE(x_adv) + lambda1·triplet + lambda2·norm, with the adversarial sample as anchor, a clean sample of its class as
    positive and the nearest clean sample of another class in a random pool as negative. The attack climbs the
    classification loss only.

    Defaults follow the paper; where the authors' code differs, an option says so:

    - ``anchor="clean"``: the variant TLA-SA, positive and anchor swapped. ``negative="random"``: TLA-RN.
    - ``positive``: ``"class"`` (paper; the code's MNIST), ``"copy"`` (the anchor's own clean image) or ``"both"`` (the
      code's CIFAR-10 and Tiny-ImageNet), with ``copy_margin`` for the second triplet when it differs from ``margin``.
    - ``noise``: uniform noise of size eps on all clean ``"images"`` (paper), only on the ``"copy"`` (code), ``"none"``.
    - ``norm``: ``"length"`` is the paper's sum of feature lengths weighted by lambda2; ``"mean_square"`` the code's
      mean of squares inside the triplet term, so weighted by lambda1·lambda2.
    - ``signed_search``: the code picks negatives by the signed cosine, the paper by its absolute value; ``signed``
      makes the triplet distance itself signed.
    - ``matching``: weight of the squared distance between the adversarial features and those of the clean copy, which
      the code adds for Tiny-ImageNet.
    - ``layer``: the representation; None for the penultimate layer, ``"logits"``, or the name of a module.

    Each part goes through the model in a pass of its own with its own batch statistics, and pool and anchor are
    embedded for the search in eval mode, as in the code; two triplets of one anchor share its negative. Everything is
    a mean over the batch.
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
    signed: bool = False
    signed_search: bool = False
    matching: float = 0.0
    layer: str | None = None
    warmup: float = 0.0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_crafting(self.attack, self.warmup)
        for weight in ("lambda1", "lambda2", "matching"):
            check_weight(weight, getattr(self, weight))
        if self.pool < 1:
            raise ValueError(f"pool is {self.pool} but negatives are drawn from a pool of at least one sample")
        for option in fields(self):
            value, known = getattr(self, option.name), get_args(option.type)
            if get_origin(option.type) is Literal and value not in known:
                raise ValueError(f"{option.name} is {value!r} but it must be one of {', '.join(known)}")
        if self.positive == "class" and (self.matching or self.copy_margin is not None):
            raise ValueError(
                'matching and copy_margin are about the clean copy, so they need positive="copy" or "both"'
            )

    @property
    def needs(self) -> Needs:
        """A positive per sample unless only copies are used, and the pool."""
        return Needs(positive=self.positive != "copy", pool=self.pool)

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        attack = warmed(self.attack, progress, self.warmup)
        batch = self._noisy(attack, batch, rng)
        clean = self._positives(attack, batch, rng)
        meter = Meter()
        x_adv = craft(attack, model, batch, rng, meter)
        adversarial = adapt(model).outputs(x_adv, self.layer)
        entropy = mean_entropy(model, adversarial, Rows(batch.y, batch.index), self.smoothing)
        total, parts = entropy, {"cross_entropy": entropy}
        cost, negative = meter.cost + passes(batch, 1 + len(clean)), None
        for name, x in clean.items():
            near = adapt(model).outputs(x, self.layer)
            if negative is None or self.anchor == "clean":  # an anchor keeps its negative: one search, one pass
                anchors = x_adv if self.anchor == "adversarial" else x
                chosen = self._negatives(model, batch, anchors, rng.fork(name))
                negative = adapt(model).outputs(chosen, self.layer)
                cost = cost + passes(batch) + search_cost(batch, self.negative)
            weighted, more = self._triplet(batch, adversarial, near, negative, name)
            total, parts = total + weighted, parts | more
        return Terms(total, parts, cost, (adversarial,))

    def _noisy(self, attack: Attack, batch: Batch, rng: Rng) -> Batch:
        """The batch with noise on its positives and its pool, where the paper has it."""
        if self.noise != "images" or batch.pool is None:
            return batch
        pool = batch.pool
        x = attack.threat.sample(pool.x, rng.fork("pool noise"))
        positive = batch.positive
        if positive is not None:
            positive = attack.threat.sample(positive, rng.fork("positive noise"))
        return Batch(batch.x, batch.y, batch.index, positive, Batch(x, pool.y, pool.index))

    def _positives(self, attack: Attack, batch: Batch, rng: Rng) -> dict[str, Tensor]:
        """The clean images that belong with the anchors, one set per triplet."""
        clean: dict[str, Tensor] = {}
        if self.positive != "copy":
            clean["triplet"] = positives(batch)
        if self.positive != "class":
            noisy = self.noise != "none"
            clean["copy_triplet"] = attack.threat.sample(batch.x, rng.fork("copy noise")) if noisy else batch.x
        return clean

    def _triplet(
        self, batch: Batch, adversarial: Outputs, clean: Outputs, negative: Outputs, name: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted terms of one triplet, and their parts for the log."""
        copies = name == "copy_triplet"
        anchor, positive = (adversarial, clean) if self.anchor == "adversarial" else (clean, adversarial)
        rows = Rows(batch.y, batch.index, {"positive": positive.features, "negative": negative.features})
        margin = self.margin if not copies or self.copy_margin is None else self.copy_margin
        hinge = triplet(anchor, rows, margin=margin, signed=self.signed).mean()
        if self.norm == "length":
            size = feature_norm(anchor, rows).mean()
            total = self.lambda1 * hinge + self.lambda2 * size
        else:
            size = feature_mean_square(anchor, rows).mean()
            total = self.lambda1 * (hinge + self.lambda2 * size)
        parts = {name: hinge, f"{name}_norm": size}
        if copies and self.matching:
            near = feature_matching(adversarial, Rows(batch.y, batch.index, {"features": clean.features})).mean()
            total, parts = total + self.matching * near, parts | {"matching": near}
        return total, parts

    def _negatives(self, model: nn.Module, batch: Batch, anchors: Tensor, rng: Rng) -> Tensor:
        return negatives(model, batch, anchors, rng, search=self.negative, layer=self.layer, signed=self.signed_search)
