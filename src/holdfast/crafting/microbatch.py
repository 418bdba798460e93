"""The micro-batch size of attacks: large enough to use the processor, small enough for its cache."""

import time
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from holdfast.contracts import Model, Rows
from holdfast.crafting.arithmetic import within
from holdfast.crafting.view import crafting
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng

USUAL = 256
_TRIED = (32, 64, 128, 256, 512)
_ROUNDS = 3

_size: ContextVar[int] = ContextVar("micro", default=USUAL)


def size() -> int:
    """The micro-batch size in force."""
    return _size.get()


def micro(number: int) -> AbstractContextManager[None]:
    """Set the micro-batch size of attacks within the context."""
    if number < 1:
        raise ValueError(f"{number} samples at a time were asked for but an attack needs at least 1")
    return within(_size, number)


def measured(model: nn.Module, x: Tensor, y: Tensor, total: int | None = None) -> int:
    """The micro-batch size with the least time per sample for one gradient; the sizes are timed in turns.

    There are as many turns as take about one pass over the ``total`` samples that will be attacked (None: many).
    """
    sizes = [number for number in _TRIED if number <= len(x)]
    if len(sizes) < 2:
        return sizes[0] if sizes else USUAL
    turns = _ROUNDS if total is None else max(1, min(_ROUNDS, total // sum(_TRIED)))
    best = dict.fromkeys(sizes, torch.inf)
    with crafting(model, Rng(0)) as view, torch.inference_mode(False), torch.enable_grad():
        _seconds(view, x[: sizes[0]], y[: sizes[0]])  # a first pass prepares more than later ones
        for _ in range(turns):
            for number in sizes:
                best[number] = min(best[number], _seconds(view, x[:number], y[:number]) / number)
    known = [number for number in sizes if best[number] < torch.inf] or sizes
    return min(known, key=best.__getitem__)


def _seconds(view: Model, x: Tensor, y: Tensor) -> float:
    started = time.perf_counter()
    leaf = x.clone().requires_grad_()
    try:
        (grad,) = torch.autograd.grad(cross_entropy(view.outputs(leaf), Rows.of(y)).sum(), leaf)
    except RuntimeError:  # no gradient, or not enough memory
        return torch.inf
    grad.sum().item()  # devices run asynchronously: this waits for them
    return time.perf_counter() - started
