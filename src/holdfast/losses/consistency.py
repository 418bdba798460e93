"""Losses on the difference between two forward passes of the same sample; the rows hold the outputs of the other."""

from torch import Tensor

from holdfast.contracts import Outputs, Rows


def logit_pairing(out: Outputs, rows: Rows) -> Tensor:
    """Mean over classes of the squared difference to ``rows["logits"]`` (ALP, Kannan et al. 2018)."""
    return (out.logits - rows["logits"]).square().mean(1)


def feature_matching(out: Outputs, rows: Rows) -> Tensor:
    """The squared L2 distance to ``rows["features"]`` (``match_l2`` in the TLA authors' code)."""
    return (out.features - rows["features"]).square().sum(1)


def kl_divergence(out: Outputs, rows: Rows) -> Tensor:
    """KL(p || q) with p from ``rows["logits"]`` and q from this pass (TRADES, Zhang et al. 2019).

    Computed from log probabilities: a probability that underflows to 0 would make the gradient NaN.
    """
    p, q = rows["logits"].log_softmax(1), out.logits.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)
