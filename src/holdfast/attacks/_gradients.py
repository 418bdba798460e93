"""The input gradient of a loss, and how the gradient loop estimates it at an iterate.

By default it is the input gradient of one pass. Within :func:`estimating` it is the mean over several draws of a
randomized model, the gradient at a changed copy of the input, or a smoothed gradient. An attack that runs another one
sets this for whatever inner attack it is given, so that no attack needs options of its own for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows

Change = Callable[[Tensor, Rows, Tensor, int], Tensor]
"""A differentiable change of the inputs (b, ...), given the rows, the step (b,) and the number of the draw."""

Smooth = Callable[[Tensor], Tensor]
"""A change of the gradients (b, ...)."""

Evaluated = tuple[Outputs, Tensor, Tensor]
"""The outputs, the losses (b,) and the input gradients of one evaluation."""


@dataclass(frozen=True)
class _Estimate:
    """The mean gradient over ``draws`` evaluations, of inputs that ``change`` alters, then passed through ``smooth``.

    ``asked`` is not empty once a loop asked for a gradient.
    """

    draws: int = 1
    change: Change | None = None
    smooth: Smooth | None = None
    asked: set[bool] = field(default_factory=set)


_estimate: ContextVar[_Estimate | None] = ContextVar("estimate", default=None)


@contextmanager
def estimating(
    who: str, x: Tensor, *, draws: int = 1, change: Change | None = None, smooth: Smooth | None = None
) -> Iterator[None]:
    """Make gradient loops estimate gradients this way within the context, besides what an outer context asks for.

    If no loop asks for a gradient of the inputs x, the options of ``who`` had no effect and a ValueError says so.
    """
    outer = _estimate.get() or _Estimate()
    inner = _Estimate(outer.draws * draws, change or outer.change, smooth or outer.smooth)
    token = _estimate.set(inner)
    try:
        yield
    finally:
        _estimate.reset(token)
    outer.asked.update(inner.asked)
    if not inner.asked and len(x):
        raise ValueError(
            f"{who} needs an attack that follows gradients by the shared loop, but this one asked it for none; "
            "give it PGD, MIM or another attack of that kind"
        )


def changed(x_adv: Tensor, rows: Rows, t: Tensor, draw: int) -> Tensor:
    """The input that the model sees instead of x_adv."""
    estimate = _estimate.get()
    return x_adv if estimate is None or estimate.change is None else estimate.change(x_adv, rows, t, draw)


def estimated(evaluate: Callable[[int], Evaluated]) -> Evaluated:
    """The mean of the evaluations of all draws; ``evaluate`` is given the number of the draw."""
    estimate = _estimate.get()
    if estimate is None:
        return evaluate(0)
    estimate.asked.add(True)
    out, loss, grad = _mean(evaluate, estimate.draws)
    return out, loss, grad if estimate.smooth is None else estimate.smooth(grad)


def _mean(evaluate: Callable[[int], Evaluated], draws: int) -> Evaluated:
    """One draw at a time: all draws in one batch would need as many times the memory."""
    out, loss, grad = evaluate(0)
    features, logits = out.features.detach(), out.logits.detach()
    for draw in range(1, draws):
        more, more_loss, more_grad = evaluate(draw)
        features, logits = features + more.features.detach(), logits + more.logits.detach()
        loss, grad = loss + more_loss, grad + more_grad
    return Outputs(out.x, features / draws, logits / draws), loss / draws, grad / draws


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient of the summed loss with respect to x; NaN, where the arithmetic broke down, becomes zero."""
    if loss.shape != x.shape[:1]:
        raise ValueError(
            f"the loss has shape {tuple(loss.shape)} for {len(x)} samples but one number per sample is needed"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on the input through autograd, so there is no gradient to follow; "
            "check the model for .detach(), no_grad or a non-differentiable step, or use a gradient-free attack"
        )
    # of the sum, not the mean: a sample's gradient must not depend on the batch size
    (grad,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    return torch.nan_to_num_(grad, nan=0.0)
