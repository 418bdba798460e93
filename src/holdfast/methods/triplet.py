"""A triplet term for any method."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Batch, Method, Needs, Rows, Terms
from holdfast.losses.metric import feature_norm, triplet
from holdfast.methods._craft import check_weight, passes
from holdfast.methods._seen import last_seen
from holdfast.methods._triplets import negatives, positives, search_cost
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Triplet:
    """Another method plus TLA's triplet and norm terms on the samples it passed last, adversarial where it has such.

    With adversarial training inside it is TLA without noise (Mao et al. 2019, whose weights are the defaults); with
    TRADES or LLR inside, what no paper tried. Positives are clean samples of the same class, negatives the nearest
    clean ones of another class in a pool.
    """

    method: Method
    lambda1: float = 0.5
    lambda2: float = 0.001
    margin: float = 0.05
    pool: int = 50

    def __post_init__(self) -> None:
        check_weight("lambda1", self.lambda1)
        check_weight("lambda2", self.lambda2)
        if self.pool < 1:
            raise ValueError(f"pool is {self.pool} but negatives are drawn from a pool of at least one sample")

    @property
    def needs(self) -> Needs:
        """A positive per sample and the pool, which it shares with the method inside."""
        return Needs(positive=True, pool=max(self.pool, self.method.needs.pool))

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        terms = self.method(model, batch, progress=progress, rng=rng)
        anchor = last_seen(terms)
        positive = adapt(model).outputs(positives(batch))
        negative = adapt(model).outputs(negatives(model, batch, anchor.x, rng.fork("triplet")))
        rows = Rows(batch.y, batch.index, {"positive": positive.features, "negative": negative.features})
        hinge, size = triplet(anchor, rows, margin=self.margin).mean(), feature_norm(anchor, rows).mean()
        total = terms.total + self.lambda1 * hinge + self.lambda2 * size
        cost = terms.cost + passes(batch, 2) + search_cost(batch)
        return Terms(total, {**terms.parts, "triplet": hinge, "triplet_norm": size}, cost, terms.seen)
