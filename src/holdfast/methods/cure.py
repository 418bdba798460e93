"""Curvature regularization."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Cost, Needs, Rows, Terms
from holdfast.geometry import L2
from holdfast.losses.classification import cross_entropy
from holdfast.losses.linearity import curvature
from holdfast.methods._craft import check_warmup, check_weight
from holdfast.methods._entropy import mean_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class CURE:
    """l(x) + ``gamma``·||grad l(x + z) - grad l(x)||, z along the sign of the gradient (Moosavi-Dezfooli et al. 2019).

    The Euclidean length of z is ``h``, in input units: its values follow each other over the first ``warmup`` share
    of training, in equal parts, and the last one stays. The authors' code lengthens h over four epochs, from 0.1 to 3
    in units of its normalized inputs; the default is that in pixels, about a fifth of it. ``squared`` squares the
    length of the difference.

    As in that code, z is held fixed while gradients flow through both gradients, nothing is divided by h, and the
    regularizer sees batch norm in eval mode; unlike there, each sample's gradient is its own, whatever the batch size.
    """

    gamma: float = 4.0
    h: tuple[float, ...] = (0.02, 0.08, 0.16, 0.36, 0.6)
    warmup: float = 0.4
    squared: bool = False
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_weight("gamma", self.gamma)
        check_warmup(self.warmup)
        if not self.h or not all(0 < length < inf for length in self.h):
            raise ValueError(f"h is {self.h} but it holds one or more lengths above 0, in input units")

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        clean = adapt(model).outputs(batch.x)
        entropy = mean_entropy(model, clean, Rows(batch.y, batch.index), self.smoothing)
        with _in_eval_mode(model):
            gradient = self._gradient(model, batch, batch.x)
            moved = self._gradient(model, batch, batch.x + self.length(progress) * _direction(gradient.detach()))
        rows = Rows(batch.y, batch.index, {"gradient": gradient, "moved_gradient": moved})
        bend = curvature(clean, rows)
        bend = (bend.square() if self.squared else bend).mean()
        # each gradient: there, back to the input, and back through both; the clean pass: there and back
        cost = Cost(3 * len(batch), 7 * len(batch))
        return Terms(entropy + self.gamma * bend, {"cross_entropy": entropy, "curvature": bend}, cost, (clean,))

    def length(self, progress: float) -> float:
        """h at this point of training."""
        place = len(self.h) if progress >= self.warmup else int(len(self.h) * progress / self.warmup)
        return self.h[min(place, len(self.h) - 1)]

    def _gradient(self, model: nn.Module, batch: Batch, x: Tensor) -> Tensor:
        here = x.detach().requires_grad_()
        loss = cross_entropy(adapt(model).outputs(here), Rows(batch.y, batch.index), smoothing=self.smoothing)
        (gradient,) = torch.autograd.grad(loss.sum(), here, create_graph=True)  # summed: each row its own
        return gradient


def _direction(gradient: Tensor) -> Tensor:
    """The sign of the gradient, of Euclidean length one; zero where there is no gradient."""
    return L2().steepest(gradient.sign())


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training
