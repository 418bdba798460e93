"""Losses of logits and labels."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.contracts import Loss, Outputs, Rows

_LEAST = 1e-12  # added to denominators, as in the code of AutoAttack


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
    try:
        return functional.cross_entropy(logits, rows.y, reduction="none", label_smoothing=smoothing)
    except IndexError as error:  # found by torch, so that labels are not searched at every step
        span = f"{int(rows.y.min())}..{int(rows.y.max())}"
        raise ValueError(f"labels span {span} but the model has classes 0..{logits.shape[1] - 1}") from error


def logit_difference(out: Outputs, rows: Rows, *, kappa: float = math.inf) -> Tensor:
    """The largest wrong logit minus the true one, capped at kappa (Carlini and Wagner 2017).

    Positive exactly when the input is misclassified. The 'cw' loss of Madry's and of the TLA authors' code has
    ``kappa=50``.
    """
    true, wrong = _true_and_wrong(out.logits, rows.y)
    return (wrong - true).clamp_max(kappa)


def targeted_cross_entropy(out: Outputs, rows: Rows) -> Tensor:
    """The negative cross entropy with ``rows["target"]``: maximizing it moves a sample toward the target class."""
    return -functional.cross_entropy(out.logits, rows["target"], reduction="none")


def targeted_logit_difference(out: Outputs, rows: Rows, *, kappa: float = math.inf) -> Tensor:
    """The logit of ``rows["target"]`` minus the true one, capped at kappa (Gowal et al. 2019, MultiTargeted)."""
    target = out.logits.gather(1, rows["target"][:, None]).squeeze(1)
    return (target - out.logits.gather(1, rows.y[:, None]).squeeze(1)).clamp_max(kappa)


def dlr(out: Outputs, rows: Rows) -> Tensor:
    """The difference of logits ratio, (max_{j≠y} z_j - z_y) / (z_(1) - z_(3)), z_(k) the k-th largest logit (Croce and
    Hein 2020).

    It does not change if the logits are shifted or scaled. Positive exactly when the input is misclassified.
    """
    top = _top(out.logits, 3, "DLR")
    true, wrong = _true_and_wrong(out.logits, rows.y)
    return (wrong - true) / (top[:, 0] - top[:, 2] + _LEAST)


def targeted_dlr(out: Outputs, rows: Rows) -> Tensor:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2) with t = ``rows["target"]``: the loss of APGD-T (Croce and Hein
    2020).
    """
    top = _top(out.logits, 4, "targeted DLR")
    return targeted_logit_difference(out, rows) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + _LEAST)


def probability_margin(out: Outputs, rows: Rows, *, rescale: bool = False) -> Tensor:
    """The largest wrong probability minus the true one (PMA, Xie et al. 2024).

    Softmax saturates at large logits, where its gradient vanishes. ``rescale`` divides the logits by the difference of
    the two largest, taken as a constant.
    """
    true, wrong = true_and_wrong_probability(out.logits, rows.y, rescale)
    return wrong - true


def true_and_wrong_probability(logits: Tensor, y: Tensor, rescale: bool = False) -> tuple[Tensor, Tensor]:
    """(b,) the probability of the label and the largest one of another class; ``rescale`` as above."""
    if rescale:
        top = logits.detach().topk(2, dim=1).values
        logits = logits / (top[:, :1] - top[:, 1:] + _LEAST)
    return _true_and_wrong(logits.softmax(1), y)


def reads_target(loss: Loss) -> bool:
    """True for the losses of this module that aim at ``rows["target"]``."""
    return getattr(loss, "func", loss) in (targeted_cross_entropy, targeted_logit_difference, targeted_dlr)


def toward_target(loss: Loss) -> Loss:
    """The loss that a targeted attack maximizes: the negative loss with ``rows["target"]`` as the label.

    Losses that aim at a target are returned as they are.
    """
    if reads_target(loss):
        return loss
    return lambda out, rows: -loss(out, Rows(rows["target"], rows.index, rows.given))


def _true_and_wrong(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(b,) the score of the label and the largest one of another class."""
    wrong = scores.scatter(1, y[:, None], -torch.inf).amax(1)  # a mask, not a product: all logits may be negative
    return scores.gather(1, y[:, None]).squeeze(1), wrong


def _top(logits: Tensor, k: int, name: str) -> Tensor:
    if logits.shape[1] < k:
        raise ValueError(
            f"{name} needs at least {k} classes but the model has {logits.shape[1]}; use cross_entropy or "
            "logit_difference"
        )
    return logits.topk(k, dim=1).values
