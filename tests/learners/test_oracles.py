"""Closed forms, objectives and gradients, compared with general solvers, plain loops and finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from holdfast import neighbors
from holdfast.learners import ARML, ITML, LMNN, _triplets
from holdfast.learners._triplets import Classes, Neighborhoods, triplet_radius
from holdfast.learners.arml import LOSSES, _mean_loss
from holdfast.learners.itml import Projections, _square_root, other_class, same_class
from holdfast.learners.lmnn import Objective


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(size=shape)


@given(seed=st.integers(0, 10**6), rank=st.integers(1, 4))
def test_triplet_radius_is_the_distance_found_by_a_general_solver(seed: int, rank: int) -> None:
    """SLSQP minimizes ||d||² subject to x + d being no nearer to x+ than to x-."""
    x, plus, minus = normal(seed, 3, 4)
    root = normal(seed + 1, rank, 4)
    m = root.T @ root

    def distance(point: np.ndarray, to: np.ndarray) -> float:
        return float((point - to) @ m @ (point - to))

    closer = {"type": "ineq", "fun": lambda d: distance(x + d, plus) - distance(x + d, minus)}
    solved = minimize(
        lambda d: d @ d, np.zeros(4), jac=lambda d: 2 * d, constraints=closer, options={"ftol": 1e-14, "maxiter": 300}
    )
    (radius,) = triplet_radius(*(torch.from_numpy(part)[None] for part in (x, plus, minus)), torch.from_numpy(m))
    assert max(radius.item(), 0) == pytest.approx(np.linalg.norm(solved.x), abs=1e-5)


@given(seed=st.integers(0, 10**6))
def test_triplet_radius_is_the_formula_of_the_paper_and_invariant_to_scaling(seed: int) -> None:
    x, plus, minus = torch.from_numpy(normal(seed, 3, 6, 4))
    root = torch.from_numpy(normal(seed + 1, 4, 4))
    m = root.T @ root
    far, near = (((x - to) @ root.T).square().sum(1) for to in (minus, plus))
    paper = (far - near) / (2 * torch.linalg.vector_norm((plus - minus) @ m, dim=1))
    torch.testing.assert_close(triplet_radius(x, plus, minus, m), paper)
    torch.testing.assert_close(triplet_radius(x, plus, minus, 1e6 * m), paper)


def test_triplets_of_equal_points_have_radius_zero_and_a_finite_gradient() -> None:
    x, same = torch.rand(3, 4), torch.rand(3, 4)
    m = torch.eye(4, requires_grad=True)
    radius = triplet_radius(x, same, same, m)
    radius.sum().backward()
    assert radius.tolist() == [0, 0, 0]
    assert m.grad is not None
    assert torch.isfinite(m.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradients_agree_with_finite_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.learners.arml._ROWS", 7)  # several blocks
    x, g = torch.from_numpy(normal(0, 20, 3)), torch.from_numpy(normal(1, 3, 3))
    triplets = torch.from_numpy(np.random.RandomState(2).randint(20, size=(3, 20)))
    value, by_metric = _mean_loss(x, g, LOSSES[name], *triplets)
    gradient, step = g @ (by_metric + by_metric.T), 1e-6
    for i, j in np.ndindex(3, 3):
        d = torch.zeros_like(g)
        d[i, j] = step
        above, below = (_mean_loss(x, g + sign * d, LOSSES[name], *triplets)[0] for sign in (1, -1))
        assert gradient[i, j].item() == pytest.approx((above - below) / (2 * step), abs=1e-6)
    radii = triplet_radius(*(x[i] for i in triplets), g.T @ g)
    assert value == pytest.approx(LOSSES[name](radii).mean().item())


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_decrease_with_the_radius(loss: object) -> None:
    values = loss(torch.linspace(-3, 3, 100))  # type: ignore[operator]
    assert (values.diff() <= 0).all()
    assert values[0] > values[-1]


def test_neighborhoods_agree_with_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triplets, "_ENTRIES", 100)  # several blocks for each class
    labels = np.sort(np.random.RandomState(0).choice(4, 41, p=[0.5, 0.3, 0.15, 0.05]))
    labels[-1] = 4  # the only point of its class
    labels = np.unique(labels, return_inverse=True)[1]
    z = normal(1, 41, 3)
    found = Neighborhoods(torch.from_numpy(z), Classes.of(torch.from_numpy(labels)), 6)
    for i in range(41):
        order = np.argsort(((z - z[i]) ** 2).sum(1))
        own = [j for j in order if labels[j] == labels[i] and j != i][:6]
        other = [j for j in order if labels[j] != labels[i]][:6]
        assert found.sizes[i].tolist() == [len(own), len(other)]
        assert set(found.same[i, : len(own)].tolist()) == set(own)
        assert set(found.other[i, : len(other)].tolist()) == set(other)


def test_triplets_are_uniform_over_the_neighborhood_and_skip_classes_of_one_point() -> None:
    labels = torch.tensor([0] * 6 + [1] * 9 + [2])
    near = Neighborhoods(torch.from_numpy(normal(0, 16, 2)), Classes.of(labels), 10)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(16, 16)
    for _ in range(3000):
        x, plus, minus = near.draw(generator)
        assert 15 not in x
        assert (labels[plus] == labels[x]).all()
        assert (labels[minus] != labels[x]).all()
        assert (plus != x).all()
        counts[x, plus] += 1
    assert counts[:6, :6].sum(1).tolist() == [3000] * 6
    off = counts[:6, :6][~torch.eye(6, dtype=torch.bool)]
    assert (off - 600).abs().max() < 110  # five standard deviations


def test_arml_increases_the_radius_for_every_refresh_interval() -> None:
    x, y = normal(0, 120, 4) * [0.2, 1, 1, 1], np.repeat([0, 1], 60)
    x[:, 0] += y
    losses: list[float] = []
    for refresh in (1, 5):
        losses.clear()
        ARML(
            max_iter=60, learning_rate=0.02, tol=None, refresh=refresh, random_state=0, device="cpu",
            progress=lambda _, loss: losses.append(loss),
        ).fit(x, y)  # fmt: skip
        assert np.mean(losses[-10:]) < np.mean(losses[:3]) - 0.1


def lmnn_loop(points: np.ndarray, labels: np.ndarray, root: np.ndarray, k: int, pull: float) -> float:
    """The objective of LMNN as nested loops."""
    table, plain = (((z[:, None] - z[None]) ** 2).sum(2) for z in (points @ root.T, points))
    total = 0.0
    for i in range(len(points)):
        targets = [j for j in np.argsort(plain[i], kind="stable") if labels[j] == labels[i] and j != i][:k]
        for j in targets:
            total += pull * table[i, j]
            for other in range(len(points)):
                if labels[other] != labels[i]:
                    total += (1 - pull) * max(0, 1 + table[i, j] - table[i, other])
    return total


def lmnn_problem() -> tuple[Objective, np.ndarray, np.ndarray]:
    labels = np.repeat([0, 1, 2, 3], [8, 6, 3, 1])
    points = normal(0, 18, 3)
    classes = Classes.of(torch.from_numpy(labels))
    return Objective(torch.from_numpy(points), classes, 3, 0.4, 100), points, labels


@pytest.mark.parametrize("scale", [0.1, 0.7, 3.0])
def test_the_objective_of_lmnn_agrees_with_a_loop(scale: float) -> None:
    objective, points, labels = lmnn_problem()
    root = torch.from_numpy(scale * normal(3, 3, 3))
    rough = objective.search(root)
    value, gradient = objective(root)
    assert value == pytest.approx(lmnn_loop(points, labels, root.numpy(), 3, 0.4))
    assert rough == pytest.approx(value, rel=1e-4)
    for i, j in np.ndindex(3, 3):
        d = np.zeros((3, 3))
        d[i, j] = 1e-6
        above, below = (lmnn_loop(points, labels, root.numpy() + sign * d, 3, 0.4) for sign in (1, -1))
        assert gradient[i, j].item() == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-4)


def test_lmnn_decreases_its_objective_in_every_round() -> None:
    labels = np.repeat([0, 1, 2], 6)
    points = normal(0, 18, 3) * [0.3, 2, 2] + labels[:, None] * [1, 0, 0]
    losses: list[float] = []
    fitted = LMNN(max_iter=60, tol=1e-6, device="cpu", progress=lambda _, value: losses.append(value)).fit(
        points, labels
    )
    assert (np.diff(losses) <= 0).all()
    end = lmnn_loop(points, labels, fitted.components_, 3, 0.5)
    assert losses[-1] == pytest.approx(end, rel=1e-4)
    assert end < 0.8 * lmnn_loop(points, labels, np.eye(3), 3, 0.5)
    general = minimize(
        lambda flat: lmnn_loop(points, labels, flat.reshape(3, 3), 3, 0.5),
        fitted.components_.ravel(),
        options={"maxiter": 8},
    )
    assert end < 1.02 * general.fun  # a general optimizer finds little improvement from there


def test_only_the_nearest_impostors_count() -> None:
    objective, *_ = lmnn_problem()
    objective.max_impostors = 2
    z = 0.1 * torch.eye(3, dtype=torch.float64)
    objective.search(z)
    assert objective.impostors[0].bincount().max() <= 2
    table = torch.cdist(objective.x, objective.x)
    for anchor, impostor in objective.impostors.T.tolist():
        wrong = objective.x.new_tensor(np.repeat([0, 1, 2, 3], [8, 6, 3, 1]))
        assert (table[anchor][wrong != wrong[anchor]] < table[anchor, impostor]).sum() < 2


def davis_projections(
    v: np.ndarray, sign: np.ndarray, bounds: tuple[float, float], gamma: float, cycles: int
) -> np.ndarray:
    """Algorithm 1 of Davis et al. as printed, with one outer product per constraint."""
    a, lam, xi = np.eye(v.shape[1]), np.zeros(len(v)), np.where(sign > 0, *bounds)
    for _ in range(cycles):
        for i in range(len(v)):
            p = v[i] @ a @ v[i]
            alpha = min(lam[i], sign[i] / 2 * 2 * gamma / (gamma + 1) * (1 / p - 1 / xi[i]))
            beta = sign[i] * alpha / (1 - sign[i] * alpha * p)
            xi[i] = gamma * xi[i] / (gamma + sign[i] * alpha * xi[i])
            lam[i] -= alpha
            a = a + beta * np.outer(a @ v[i], a @ v[i])
    return a


@pytest.mark.parametrize("gamma", [0.3, 1.0, 20.0])
def test_blocked_projections_equal_projections_one_by_one(gamma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.learners.itml._BLOCK", 7)
    v, sign = normal(0, 40, 5), np.repeat([1.0, -1.0], 20)
    projections = Projections(torch.from_numpy(v), sign, (2.0, 9.0), gamma)
    for _ in range(4):
        projections.cycle()
    np.testing.assert_allclose(
        projections.matrix.numpy(), davis_projections(v, sign, (2.0, 9.0), gamma, 4), rtol=1e-9, atol=1e-12
    )


def test_itml_satisfies_its_constraints_and_the_optimality_condition_for_large_gamma() -> None:
    """At a stationary point of the LogDet problem the inverse is that of the prior minus the weighted constraints."""
    v, sign = normal(0, 6, 5), np.repeat([1.0, -1.0], 3)
    projections = Projections(torch.from_numpy(v), sign, (4.0, 5.0), 1e6)
    for _ in range(3000):
        projections.cycle()
    a = projections.matrix.numpy()
    lengths = np.einsum("ni,ij,nj->n", v, a, v)
    assert (sign * (lengths - np.where(sign > 0, 4.0, 5.0)) < 1e-3).all()
    inverse = np.eye(5) + (v.T * (sign * projections.multipliers)) @ v
    np.testing.assert_allclose(np.linalg.inv(a), inverse, atol=1e-6)
    assert (projections.multipliers >= 0).all()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.diag([1.0, np.nan]), "ITML's matrix is no longer finite"),
        (np.diag([1.0, -0.1]), "ITML's matrix has the eigenvalue -0.1 but must be positive semi-definite"),
    ],
)
def test_itml_refuses_a_matrix_that_is_no_metric(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _square_root(matrix)
    root = _square_root(np.diag([4.0, -1e-9]))
    np.testing.assert_allclose(root.T @ root, np.diag([4.0, 0.0]), atol=1e-8)


@given(seed=st.integers(0, 10**6))
def test_pairs_have_the_same_or_different_classes(seed: int) -> None:
    random = np.random.RandomState(seed)
    labels = np.unique(random.randint(5, size=30), return_inverse=True)[1]
    a, b = same_class(labels, 200, random)
    assert (labels[a] == labels[b]).all()
    assert (a != b).all()
    a, b = other_class(labels, 200, random)
    assert (labels[a] != labels[b]).all()


def test_every_pair_is_drawn_eventually() -> None:
    labels, random = np.array([0, 1, 0, 1, 1]), np.random.RandomState(0)
    same, other = (set(zip(*draw(labels, 500, random), strict=True)) for draw in (same_class, other_class))
    assert same == {(a, b) for a in range(5) for b in range(5) if a != b and labels[a] == labels[b]}
    assert other == {(a, b) for a in range(5) for b in range(5) if labels[a] != labels[b]}


def test_default_bounds_of_itml_are_percentiles_of_squared_distances() -> None:
    x, y = normal(0, 200, 3), np.arange(200) % 2
    with pytest.warns(ConvergenceWarning):
        fitted = ITML(max_iter=1, random_state=0, device="cpu").fit(x, y)
    squared = ((x[:, None] - x[None]) ** 2).sum(2)[~np.eye(200, dtype=bool)]
    np.testing.assert_allclose(fitted.bounds_, np.percentile(squared, (5, 95)), rtol=0.05)


def test_distances_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch, products: list[int]) -> None:
    for module in (_triplets, neighbors):
        monkeypatch.setattr(module, "_ENTRIES", 10_000)
    x, y = normal(0, 600, 3), np.arange(600) % 3
    ARML(max_iter=2, tol=None, random_state=0, device="cpu").fit(x, y)
    with pytest.warns(ConvergenceWarning):
        LMNN(max_iter=1, device="cpu").fit(x, y)
    assert len(products) > 100
    assert max(products) <= 10_000
