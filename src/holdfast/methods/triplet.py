"""A triplet term for any method."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Batch, Method, Needs, Terms
from holdfast.losses.metric import feature_norm, triplet
from holdfast.methods._craft import check_settings, checked, passes, training_passes
from holdfast.methods._triplets import negatives, positives, search_cost
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Triplet:
    """Adds the triplet and norm terms of TLA to another method.

    Anchors are the samples of the last training pass of ``method``, adversarial where it has such a pass. Positives are
    clean samples of the same class; negatives are the nearest clean samples of another class in a pool of ``pool``.
    Around adversarial training this is TLA without noise (Mao et al. 2019; the default weights are those of its MNIST
    experiments). Around TRADES or LLR it is a combination that no paper has published.
    """

    method: Method
    lambda1: float = 0.5
    lambda2: float = 0.001
    margin: float = 0.05
    pool: int = 50

    def __post_init__(self) -> None:
        check_settings(self, "lambda1", "lambda2")

    @property
    def needs(self) -> Needs:
        """One positive per sample, and a pool large enough for this term and for the wrapped method."""
        return Needs(positive=True, pool=max(self.pool, self.method.needs.pool), features=True)

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        terms = self.method(model, batch, progress=progress, rng=rng)
        anchor = training_passes(terms)[-1]
        positive = adapt(model).outputs(positives(batch))
        negative = adapt(model).outputs(negatives(model, batch, anchor.x, rng.fork("triplet")))
        rows = batch.rows({"positive": positive.features, "negative": negative.features})
        hinge, size = triplet(anchor, rows, margin=self.margin).mean(), feature_norm(anchor, rows).mean()
        total = terms.total + self.lambda1 * hinge + self.lambda2 * size
        cost = terms.cost + passes(batch, 2) + search_cost(batch)
        return Terms(total, {**terms.parts, "triplet": hinge, "triplet_norm": size}, cost, terms.seen)
