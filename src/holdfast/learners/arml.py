"""Adversarial robust metric learning (Wang et al. 2020)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.utils import check_random_state
from torch import Tensor

from holdfast.learners import _metric
from holdfast.learners._metric import Array, Progress, Supervised
from holdfast.learners._triplets import Classes, Neighborhoods, triplet_radius

_WINDOW = 20  # iterations averaged before losses are compared, because every iteration draws new triplets
_ROWS = 1 << 13  # triplets per backward pass

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": torch.neg,
    "hinge": lambda radius: F.relu(1 - radius),
    "exponential": lambda radius: torch.exp(-radius),
    "logistic": lambda radius: F.softplus(-radius),
}


class ARML(Supervised):
    """The Mahalanobis metric that maximizes the robust radius of triplets (Wang et al., NeurIPS 2020).

    Every iteration draws a triplet for each point: one of its ``n_neighbors`` nearest points of the same class and one
    of its nearest of other classes. Adam minimizes the mean ``loss`` of the signed radii of the triplets: "negative" as
    in the paper, "hinge", "exponential", "logistic", or any non-increasing function of a tensor. Neighbors are searched
    under the current metric every ``refresh`` iterations; the paper's code does so in each of its 1000 iterations.

    Fitting stops when the mean loss of 20 iterations improves on that of the 20 before by no more than ``tol``,
    relative; ``tol=None`` runs ``max_iter`` iterations. ``progress`` is called with the iteration and its loss.
    ``device`` is by default a GPU if there is one.
    """

    def __init__(
        self,
        *,
        loss: str | Callable[[Tensor], Tensor] = "negative",
        n_neighbors: int = 10,
        refresh: int = 5,
        max_iter: int = 1000,
        learning_rate: float = 1e-3,
        tol: float | None = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.loss = loss
        self.n_neighbors = n_neighbors
        self.refresh = refresh
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.tol = tol
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def fit(self, X: Array, y: Any) -> "ARML":  # noqa: N803
        """Learn the metric from labeled points."""
        _metric.check_positive_int(n_neighbors=self.n_neighbors, refresh=self.refresh, max_iter=self.max_iter)
        _metric.check_positive(learning_rate=self.learning_rate)
        if self.tol is not None:
            _metric.check_tolerance(self.tol)
        loss, device = _loss_function(self.loss), _metric.choose_device(self.device)
        points, labels, _ = _metric.check_pairs(self, X, y)
        classes = Classes.of(torch.from_numpy(labels))
        x = _metric.centered(points)[classes.order].to(device)
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        self.components_ = self._descend(x, classes, loss, generator).double().cpu().numpy()
        if not np.isfinite(self.components_).all():
            raise ValueError(f"ARML's metric is no longer finite; learning_rate {self.learning_rate} is too large")
        return self

    def _descend(
        self, x: Tensor, classes: Classes, loss: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> Tensor:
        components = torch.eye(x.shape[1], device=x.device)
        optimizer = torch.optim.Adam([components], lr=self.learning_rate)
        losses: list[float] = []
        while len(losses) < self.max_iter:
            if len(losses) % self.refresh == 0:
                near = Neighborhoods(x @ components.T, classes, self.n_neighbors)
            value, gradient = _mean_loss(x, components, loss, *near.draw(generator))
            components.grad = components @ (gradient + gradient.T)  # chain rule for M = GᵀG
            optimizer.step()
            losses.append(value)
            if self.progress is not None:
                self.progress(len(losses), value)
            if self.tol is not None and _converged(losses, self.tol):
                break
        else:
            if self.tol is not None:
                _metric.warn_not_converged(f"ARML's loss still falls after {self.max_iter} iterations", stacklevel=3)
        self.n_iter_ = len(losses)
        return components


def _loss_function(loss: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if callable(loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(f"loss is {loss!r} but must be one of {', '.join(LOSSES)} or a non-increasing function")
    return LOSSES[loss]


def _mean_loss(
    x: Tensor, components: Tensor, loss: Callable[[Tensor], Tensor], *triplets: Tensor
) -> tuple[float, Tensor]:
    """Return the mean loss of the triplets, given as three index tensors, and its gradient with respect to M."""
    metric = (components.T @ components).requires_grad_()
    total = 0.0
    for i, plus, minus in zip(*(torch.split(index, _ROWS) for index in triplets), strict=True):
        value = loss(triplet_radius(x[i], x[plus], x[minus], metric)).sum() / len(triplets[0])
        value.backward()  # type: ignore[no-untyped-call]
        total += value.item()
    assert metric.grad is not None
    return total, metric.grad


def _converged(losses: list[float], tol: float) -> bool:
    if len(losses) % _WINDOW or len(losses) < 2 * _WINDOW:
        return False
    before, now = np.mean(losses[-2 * _WINDOW : -_WINDOW]), np.mean(losses[-_WINDOW:])
    return bool(before - now <= tol * abs(now))
