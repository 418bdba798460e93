"""Sketch of a certifier without a network: exact radii of the nearest-neighbor classifier."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from small import numbers
from torch import Tensor

from holdfast.contracts import Certificate, Norm
from holdfast.geometry import L2
from holdfast.rng import Rng


def least_distance(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The shortest d with a d <= b, and a lower bound on its length that holds wherever the solver stopped."""
    target = np.append(np.zeros(a.shape[1]), 1.0)
    u, _ = nnls(np.vstack([-a.T, -b]), target)  # Lawson and Hanson's reduction
    v = u / (1 + b @ u)
    return -a.T @ v, dual_bound(a, b, v)


def dual_bound(a: np.ndarray, b: np.ndarray, v: np.ndarray) -> float:
    """A lower bound, from any v >= 0, on the length of every d with a d <= b (weak duality)."""
    return float(np.sqrt(2 * max(-((a.T @ v) ** 2).sum() / 2 - v @ b, 0.0)))


@dataclass(frozen=True, eq=False)
class NearestNeighbor:
    """Nearest in (u - v)ᵀ metric (u - v), certified in the Euclidean norm (Wang et al. 2019; Algorithm 2 of ARML)."""

    points: Tensor
    labels: Tensor
    metric: Tensor
    norm: Norm = L2()  # noqa: RUF009 - a frozen value

    def predict(self, x: Tensor) -> Tensor:
        apart = x[:, None] - self.points[None]
        return self.labels[torch.einsum("bni,ij,bnj->bn", apart, self.metric, apart).argmin(1)]

    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate:
        label = self.predict(x)
        found = [self._one(row, int(own)) for row, own in zip(x, label, strict=True)]
        d = torch.tensor(np.stack([shortest for shortest, _ in found]))
        fooled = self.predict(x + d) != label  # an upper bound is valid only if the classifier confirms it
        return Certificate(
            label,
            torch.tensor([bound for _, bound in found], dtype=x.dtype),
            torch.where(fooled, self.norm.length(d), torch.inf),
        )

    def _one(self, x: Tensor, label: int) -> tuple[np.ndarray, float]:
        own, others = self.points[self.labels == label], self.points[self.labels != label]
        apart, reach = x - own, []
        for other in others:
            a = 2 * (own - other) @ self.metric
            b = (apart @ self.metric * apart).sum(1) - (x - other) @ self.metric @ (x - other)
            d, bound = least_distance(a.numpy(), b.numpy())
            inwards = (other - x).numpy() - d  # not along d, which at a corner of the cell leads out of it again
            reach.append((d + 1e-9 * inwards, bound))
        return min(reach, key=lambda one: one[1])


@pytest.mark.parametrize("stretch", [[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.3], [0.0, 0.5]]])
def test_no_point_within_the_certified_radius_has_another_label(stretch, rng):
    g = torch.tensor(stretch, dtype=torch.float64)
    points, labels = numbers(14, 2, name="points"), torch.arange(14) % 3
    certify = NearestNeighbor(points, labels, g.T @ g)
    x = numbers(8, 2, name="query")
    certificate = certify(x, rng=rng)
    assert torch.equal(certificate.label, certify.predict(x))
    assert (certificate.radius > 0).all()
    assert (certificate.upper >= certificate.radius).all()
    torch.testing.assert_close(certificate.upper, certificate.radius, rtol=1e-6, atol=0)  # so it is exact
    ticks = torch.linspace(-0.5, 1.5, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    predicted = certify.predict(grid)
    for row, label, radius in zip(x, certificate.label, certificate.radius, strict=True):
        apart = (grid - row)[predicted != label].norm(dim=1).min()
        assert radius <= apart <= radius + 2 * (ticks[1] - ticks[0])
    again = x.repeat_interleave(500, 0)
    attacked = again + L2().sample(again, certificate.radius.repeat_interleave(500), rng)
    assert torch.equal(certify.predict(attacked), certificate.label.repeat_interleave(500))


def test_the_dual_bound_holds_when_the_solver_stops_early():
    a, b = (4 * numbers(6, 3, name="a") - 2).numpy(), -numbers(6, name="b").numpy()
    a[:, 0] += 4  # so that some d satisfies all six
    constraint = {"type": "ineq", "fun": lambda d: b - a @ d}
    best = minimize(lambda d: d @ d, np.array([-2.0, 0, 0]), constraints=constraint, options={"ftol": 1e-14}).x
    d, bound = least_distance(a, b)
    np.testing.assert_allclose(d, best, atol=1e-6)
    assert bound == pytest.approx(np.linalg.norm(best), rel=1e-6)
    proved = [dual_bound(a, b, v) for v in numbers(500, 6, name="v").numpy() / 200]
    assert 0 < max(proved) <= bound
