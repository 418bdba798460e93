"""Losses of logits and labels."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.contracts import Outputs, Rows


def cross_entropy(
    out: Outputs, rows: Rows, *, smoothing: float = 0.0, margin: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Cross entropy with the label; smoothing s makes the target (1 - s)·onehot + s/classes (Szegedy et al. 2016).

    ``margin`` is subtracted from the true logit (CosFace, Wang et al. 2018), and then all logits are divided by
    ``temperature``. With a hypersphere head of scale s, a temperature of s gives the loss of the unscaled cosines.
    """
    if not (0 <= smoothing <= 1 and 0 <= margin < math.inf and 0 < temperature < math.inf):
        raise ValueError(
            f"smoothing is {smoothing}, margin {margin} and temperature {temperature} but cross entropy takes "
            "a smoothing in [0, 1], a finite margin of zero or more and a finite temperature above zero"
        )
    logits = out.logits
    if margin:
        logits = logits - margin * functional.one_hot(rows.y, logits.shape[1]).to(logits)
    if temperature != 1:
        logits = logits / temperature
    return functional.cross_entropy(logits, rows.y, reduction="none", label_smoothing=smoothing)


def logit_difference(out: Outputs, rows: Rows, *, kappa: float = math.inf) -> Tensor:
    """The largest wrong logit minus the true one, capped at kappa (Carlini and Wagner 2017).

    Positive exactly when the input is misclassified. The 'cw' loss of Madry's and of the TLA authors' code has
    ``kappa=50``.
    """
    y = rows.y[:, None]
    wrong = out.logits.scatter(1, y, -torch.inf).amax(1)  # a mask, not a product: all logits may be negative
    return (wrong - out.logits.gather(1, y).squeeze(1)).clamp_max(kappa)


def targeted_cross_entropy(out: Outputs, rows: Rows) -> Tensor:
    """The negative cross entropy with ``rows["target"]``: maximizing it moves a sample toward the target class."""
    return -functional.cross_entropy(out.logits, rows["target"], reduction="none")


def targeted_logit_difference(out: Outputs, rows: Rows, *, kappa: float = math.inf) -> Tensor:
    """The logit of ``rows["target"]`` minus the true one, capped at kappa (Gowal et al. 2019, MultiTargeted)."""
    target = out.logits.gather(1, rows["target"][:, None]).squeeze(1)
    return (target - out.logits.gather(1, rows.y[:, None]).squeeze(1)).clamp_max(kappa)
