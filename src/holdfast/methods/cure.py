"""Curvature regularization."""

from dataclasses import dataclass
from math import inf

from torch import nn

from holdfast.contracts import Batch, Cost, Needs, Terms
from holdfast.crafting.view import eval_mode
from holdfast.geometry import L2
from holdfast.losses.linearity import curvature
from holdfast.methods._craft import check_settings, checked
from holdfast.methods._cross_entropy import input_gradient, mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class CURE:
    """l(x) + ``gamma``·||grad l(x + z) - grad l(x)||, z along the sign of the gradient (Moosavi-Dezfooli et al. 2019).

    l is the cross entropy. The L2 length of z, in input units, takes the values of ``h`` one after the other, each for
    an equal part of the first ``warmup`` share of training, and then keeps the last. The authors' code raises it over
    four epochs from 0.1 to 3 in units of normalized inputs; the default is the same schedule in pixel units, where
    lengths are about a fifth.

    As in that code, z is a constant while gradients flow through both input gradients, the difference is not divided
    by the length of z, and the regularizer uses batch norm in eval mode. Unlike there, the gradient of a sample does
    not depend on the batch size.
    """

    gamma: float = 4.0
    h: tuple[float, ...] = (0.02, 0.08, 0.16, 0.36, 0.6)
    warmup: float = 0.4
    smoothing: float = 0.0
    needs = Needs()

    def __post_init__(self) -> None:
        check_settings(self, "gamma")
        if not self.h or not all(0 < length < inf for length in self.h):
            raise ValueError(f"h is {self.h} but it holds one or more lengths above 0, in input units")

    @checked
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        clean = adapt(model).outputs(batch.x)
        entropy = mean_cross_entropy(model, clean, batch.rows(), self.smoothing)
        with eval_mode(model):
            *_, gradient = input_gradient(model, batch, batch.x, self.smoothing)
            # of L2 length one before it is scaled; zero where the gradient is zero
            z = self.length(progress) * L2().steepest(gradient.detach().sign())
            *_, moved = input_gradient(model, batch, batch.x + z, self.smoothing)
        bend = curvature(clean, batch.rows({"gradient": gradient, "moved_gradient": moved})).mean()
        # clean pass: one forward, one backward; each gradient: one forward, one backward to the input, and the double
        # backward, which goes back through both of these
        cost = Cost(3 * len(batch), 7 * len(batch))
        return Terms(entropy + self.gamma * bend, {"cross_entropy": entropy, "curvature": bend}, cost, (clean,))

    def length(self, progress: float) -> float:
        """The length of z at this point of training."""
        place = len(self.h) if progress >= self.warmup else int(len(self.h) * progress / self.warmup)
        return self.h[min(place, len(self.h) - 1)]
