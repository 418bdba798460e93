"""Batch normalization that returns its statistics with gradients, with custom first and second derivatives.

torch's batch norm does not return differentiable statistics, and its double backward takes some thirty passes over the
feature map. The one here takes two of torch's fused passes and four more.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_TINY = 1e-12  # replaces weights that are zero, by which the double backward divides


class Statistics(NamedTuple):
    """Mean and 1 / sqrt(variance + eps) of every channel; both carry gradients."""

    mean: Tensor
    inverse_std: Tensor


class RunningStatistics(NamedTuple):
    """Running mean and variance, updated in place, and the momentum of the update."""

    mean: Tensor
    variance: Tensor
    momentum: float


def normalize_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: RunningStatistics, eps: float
) -> tuple[Tensor, Statistics]:
    """Normalize a batch by its own statistics, return it with them, and update the running statistics."""
    y, mean, inverse_std = _NormalizeBatch.apply(x, weight, bias, running, eps)  # type: ignore[no-untyped-call]
    return y, Statistics(mean, inverse_std)


def normalize_with(x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Statistics) -> Tensor:
    """Normalize a batch by the given statistics, e.g. those of another batch."""
    return cast(Tensor, _NormalizeWith.apply(x, weight, bias, *statistics))  # type: ignore[no-untyped-call]


class _NormalizeBatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, running: RunningStatistics, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings = running.mean, running.variance, True, running.momentum
        y, mean, inverse_std = torch.native_batch_norm(x, weight, bias, *settings, eps)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, inverse_std)
        return y, mean, inverse_std

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_mean: Tensor | None, grad_inverse_std: Tensor | None) -> Any:
        x, weight, mean, inverse_std = ctx.saved_tensors
        if grad is None:
            grad = torch.zeros_like(x)
        given = grad, x, weight, mean.detach(), inverse_std.detach()
        grad_x, grad_weight, grad_bias = _NormalizeBatchBackward.apply(*given)  # type: ignore[no-untyped-call]
        if grad_mean is not None or grad_inverse_std is not None:
            n = _count(x)
            slope = x.new_zeros(()) if grad_inverse_std is None else -grad_inverse_std * inverse_std.pow(3) / n
            offset = -slope * mean if grad_mean is None else grad_mean / n - slope * mean
            grad_x = grad_x + torch.addcmul(_per_channel(offset, x), x, _per_channel(slope, x))
        return (*_needed(ctx, grad_x, grad_weight, grad_bias), None, None)


class _NormalizeBatchBackward(torch.autograd.Function):
    """The backward pass of :class:`_NormalizeBatch`, in which the statistics are functions of the batch."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse_std: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        factor = torch.ones_like(mean) if weight is None else torch.where(weight == 0, _TINY, weight)
        grad_x, grad_weight, grad_bias = _batch_norm_backward(grad, x, factor, mean, inverse_std)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, factor, mean, inverse_std, grad_x, grad_weight)
        return grad_x, grad_weight, grad_bias

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_grad_x: Tensor | None, grad_grad_weight: Tensor | None, grad_grad_bias: Tensor | None
    ) -> Any:
        x, factor, mean, inverse_std, grad_x, grad_weight = ctx.saved_tensors
        n = _count(x)
        # grad -> grad_x is linear and symmetric, so its transpose is the same fused pass
        given = torch.zeros_like(x) if grad_grad_x is None else grad_grad_x
        grad_output_grad, with_normal, _ = _batch_norm_backward(given, x, factor, mean, inverse_std)
        both = torch.zeros_like(mean) if grad_grad_x is None else (grad_grad_x * grad_x).sum(_axes(x))
        bend = -both / n * inverse_std.square()
        grad_batch = torch.addcmul(_per_channel(-bend * mean, x), x, _per_channel(bend, x))
        along = -inverse_std * with_normal / n
        along = along if grad_grad_weight is None else along + grad_grad_weight / factor
        grad_batch.addcmul_(grad_x, _per_channel(along, x))
        grad_batch.addcmul_(grad_output_grad, _per_channel(-inverse_std * grad_weight / n, x))
        if grad_grad_weight is not None:
            slope = grad_grad_weight * inverse_std
            shift = torch.addcmul(_per_channel(-slope * mean, x), x, _per_channel(slope, x))
            grad_output_grad = grad_output_grad + shift
        if grad_grad_bias is not None:
            grad_output_grad = grad_output_grad + _per_channel(grad_grad_bias, x)
        return (*_needed(ctx, grad_output_grad, grad_batch, both / factor), None, None)


class _NormalizeWith(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse_std: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse_std)
        return torch.native_batch_norm(x, weight, bias, mean, inverse_std.pow(-2), False, 0.0, 0.0)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean, inverse_std = ctx.saved_tensors
        factor = inverse_std if weight is None else inverse_std * weight
        if torch.is_grad_enabled():  # differentiable operations for a double backward
            normal = (x - _per_channel(mean, x)) * _per_channel(inverse_std, x)
            grad_x = grad * _per_channel(factor, x)
            grad_weight, grad_bias = (grad * normal).sum(_axes(x)), grad.sum(_axes(x))
        else:
            fixed = mean, inverse_std.pow(-2), None, None, False, 0.0, [True, True, True]
            grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(grad, x, weight, *fixed)
        grad_inverse_std = grad_weight * factor / inverse_std.square()
        return _needed(ctx, grad_x, grad_weight, grad_bias, -grad_bias * factor, grad_inverse_std)


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run torch's fused backward pass; return the gradients of x, weight and bias."""
    settings = None, None, mean, inverse_std, True, 0.0, [True, True, True]
    return cast(tuple[Tensor, Tensor, Tensor], torch.ops.aten.native_batch_norm_backward(grad, x, weight, *settings))


def _needed(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the first inputs, with None for inputs that need no gradient."""
    return tuple(grad if needed else None for grad, needed in zip(gradients, ctx.needs_input_grad, strict=False))


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _count(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def _per_channel(channels: Tensor, x: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast over a batch."""
    return channels.reshape([-1 if axis == 1 else 1 for axis in range(x.ndim)])
