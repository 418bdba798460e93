"""Losses that ask two passes over the same sample to agree; the other pass travels in the rows."""

from torch import Tensor

from holdfast.contracts import Outputs, Rows


def logit_pairing(out: Outputs, rows: Rows) -> Tensor:
    """Mean over classes of the squared difference to ``rows["logits"]`` (ALP, Kannan et al. 2018)."""
    return (out.logits - rows["logits"]).square().mean(1)


def feature_matching(out: Outputs, rows: Rows) -> Tensor:
    """Squared Euclidean distance to ``rows["features"]``, summed over dimensions (``match_l2`` in the TLA code)."""
    return (out.features - rows["features"]).square().sum(1)


def kl_divergence(out: Outputs, rows: Rows) -> Tensor:
    """KL(p || q) summed over classes, p from ``rows["logits"]`` and q from this pass (TRADES, Zhang et al. 2019).

    Both stay logarithms: a probability that underflows to 0 would make the gradient NaN.
    """
    p, q = rows["logits"].log_softmax(1), out.logits.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)
