"""Batch norm that gives away its statistics, differentiated by hand.

torch's own function keeps the statistics without their gradients, and its second derivative passes over the map some
thirty times; by hand it is two of torch's fused passes and four more.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_TINY = 1e-12  # for weights that are zero: what a weight is multiplied with is found by dividing by it


class Statistics(NamedTuple):
    """Mean, and one over the root of variance plus eps, of every channel; both carry gradients."""

    mean: Tensor
    steepness: Tensor


class Averages(NamedTuple):
    """What moves toward the statistics of each batch, and how far."""

    mean: Tensor
    variance: Tensor
    share: float


def own(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, averages: Averages, eps: float
) -> tuple[Tensor, Statistics]:
    """A batch normalized by its own statistics, and these; the averages move."""
    y, mean, steepness = _Own.apply(x, weight, bias, averages, eps)  # type: ignore[no-untyped-call]
    return y, Statistics(mean, steepness)


def given(x: Tensor, weight: Tensor | None, bias: Tensor | None, by: Statistics) -> Tensor:
    """A batch normalized by given statistics."""
    return cast(Tensor, _Given.apply(x, weight, bias, *by))  # type: ignore[no-untyped-call]


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, averages: Averages, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        moved = averages.mean, averages.variance, True, averages.share
        y, mean, steepness = torch.native_batch_norm(x, weight, bias, *moved, eps)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, steepness)
        return y, mean, steepness

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_mean: Tensor | None, by_steepness: Tensor | None) -> Any:
        x, weight, mean, steepness = ctx.saved_tensors
        if grad is None:
            grad = torch.zeros_like(x)
        of_x, of_weight, of_bias = _Back.apply(grad, x, weight, mean.detach(), steepness.detach())  # type: ignore[no-untyped-call]
        if by_mean is not None or by_steepness is not None:
            n = _count(x)
            bend = x.new_zeros(()) if by_steepness is None else -by_steepness * steepness.pow(3) / n
            shift = -bend * mean if by_mean is None else by_mean / n - bend * mean
            of_x = of_x + torch.addcmul(_wide(shift, x), x, _wide(bend, x))
        return (*_asked(ctx, of_x, of_weight, of_bias), None, None)


class _Back(torch.autograd.Function):
    """The gradient of a batch normalized by its own statistics, which are counted as functions of the batch."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, steepness: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        factor = torch.ones_like(mean) if weight is None else torch.where(weight == 0, _TINY, weight)
        of_x, of_weight, of_bias = _fused(grad, x, factor, mean, steepness)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, factor, mean, steepness, of_x, of_weight)
        return of_x, of_weight, of_bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x: Tensor | None, by_weight: Tensor | None, by_bias: Tensor | None) -> Any:
        x, factor, mean, steepness, of_x, of_weight = ctx.saved_tensors
        n = _count(x)
        # the map from a gradient to that of x is its own transpose: the same fused pass gives the way back
        of_grad, with_normal, _ = _fused(torch.zeros_like(x) if by_x is None else by_x, x, factor, mean, steepness)
        both = torch.zeros_like(mean) if by_x is None else (by_x * of_x).sum(_axes(x))
        bend = -both / n * steepness.square()
        of_batch = torch.addcmul(_wide(-bend * mean, x), x, _wide(bend, x))
        along = -steepness * with_normal / n
        along = along if by_weight is None else along + by_weight / factor
        of_batch.addcmul_(of_x, _wide(along, x)).addcmul_(of_grad, _wide(-steepness * of_weight / n, x))
        if by_weight is not None:
            slope = by_weight * steepness
            of_grad = of_grad + torch.addcmul(_wide(-slope * mean, x), x, _wide(slope, x))
        if by_bias is not None:
            of_grad = of_grad + _wide(by_bias, x)
        return (*_asked(ctx, of_grad, of_batch, both / factor), None, None)


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, steepness: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, steepness)
        return torch.native_batch_norm(x, weight, bias, mean, steepness.pow(-2), False, 0.0, 0.0)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean, steepness = ctx.saved_tensors
        factor = steepness if weight is None else steepness * weight
        if torch.is_grad_enabled():  # to be differentiated again: plain operations, of which torch knows everything
            normal = (x - _wide(mean, x)) * _wide(steepness, x)
            of_x, of_weight, of_bias = grad * _wide(factor, x), (grad * normal).sum(_axes(x)), grad.sum(_axes(x))
        else:
            fixed = mean, steepness.pow(-2), None, None, False, 0.0, [True, True, True]
            of_x, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(grad, x, weight, *fixed)
        by_steepness = of_weight * factor / steepness.square()
        return _asked(ctx, of_x, of_weight, of_bias, -of_bias * factor, by_steepness)


def _fused(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, steepness: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """torch's own way back: to x, weight (the sum of gradient times normalized x) and bias (the sum of gradients)."""
    settings = None, None, mean, steepness, True, 0.0, [True, True, True]
    return cast(tuple[Tensor, Tensor, Tensor], torch.ops.aten.native_batch_norm_backward(grad, x, weight, *settings))


def _asked(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the first inputs, without those of what is no tensor or wants none."""
    return tuple(grad if asked else None for grad, asked in zip(gradients, ctx.needs_input_grad, strict=False))


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _count(x: Tensor) -> int:
    """The numbers of which a channel's statistics are made."""
    return x.numel() // x.shape[1]


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    """A number per channel, in the shape of a batch."""
    return channels.reshape([-1 if axis == 1 else 1 for axis in range(x.ndim)])
