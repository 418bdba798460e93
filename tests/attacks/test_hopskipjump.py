"""HopSkipJump approaches closed forms, uses the starts it is given, and never goes below a certificate."""

from math import inf

import pytest
import torch
from subjects import Affine
from torch import Tensor

from holdfast.attacks._queries import Oracle, answering
from holdfast.attacks.hopskipjump import HopSkipJump, _Walk
from holdfast.certify.neighbors import Neighbors
from holdfast.contracts import Rows
from holdfast.geometry import L2, NORMS, Threat
from holdfast.rng import Rng

DUAL = {"l2": 2, "linf": 1}


def problem(n: int, norm: str, box: float) -> tuple[Affine, Tensor, Tensor, Tensor]:
    """A linear model with two classes, inputs around ``box`` / 2, their labels and distances to the boundary."""
    weight = Rng(2).fork("weight").normal(torch.empty(2, 10, dtype=torch.float64))
    x = box * (0.5 + 0.1 * Rng(2).fork("x").normal(torch.empty(n, 10, dtype=torch.float64)).clamp(-2, 2))
    model = Affine(weight, -0.5 * box * weight.sum(1))
    z = model(x).detach()
    return (
        model,
        x,
        z.argmax(1),
        (z[:, 0] - z[:, 1]).abs() / torch.linalg.vector_norm(weight[0] - weight[1], DUAL[norm]),
    )


@pytest.mark.parametrize(("norm", "queries", "factor"), [("l2", 1000, 1.1), ("linf", 1000, 1.15), ("l2", 300, 1.3)])
@pytest.mark.parametrize("low", [0.0, -inf])
def test_comes_within_a_factor_of_the_closed_form(norm: str, queries: int, factor: float, low: float) -> None:
    model, x, y, exact = problem(20, norm, box=1.0)
    threat = Threat(NORMS[norm], inf, low, 1.0 - low)
    x_adv = HopSkipJump(threat=threat, queries=queries)(lambda x: model(x).argmax(1), x, y, rng=Rng(0))
    distance = threat.norm.length(x_adv - x)
    assert (model(x_adv).argmax(1) != y).all()
    assert (distance >= exact * (1 - 1e-9)).all()
    assert (distance / exact).median().item() < factor


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("share", [-9.0, -0.3, 0.0, 0.3, 9.0])  # how far the point is beyond the boundary, in probes
def test_the_normal_equals_a_loop_over_the_probes(norm: str, share: float) -> None:
    model, x, y, _ = problem(1, norm, box=1.0)
    asked: list[Tensor] = []
    attack, rows = HopSkipJump(threat=Threat(NORMS[norm], inf)), Rows.of(y)
    with answering(model, Rng(0)) as ask:
        oracle = Oracle(ask, attack, x, rows, lambda rows, x_adv, loss, cost: asked.extend(x_adv))
        walk = _Walk(attack, oracle, torch.arange(1), x, rows, Rng(0))
        across = (model.weight[1 - y] - model.weight[y]).detach()
        across /= across.norm()
        gap = (model(x)[0, y] - model(x)[0, 1 - y]).detach() / (model.weight[1] - model.weight[0]).norm().detach()
        walk.point = x + across * gap
        length = float(walk._probe_length(torch.arange(1), 2))
        walk.point = walk.point + share * length * across / 10**0.5
        length = float(walk._probe_length(torch.arange(1), 2))
        found = walk._normal(torch.arange(1), torch.tensor([37]), 2)
    assert len(asked) == 37
    v = [1.0 if int(model(point[None]).argmax()) != int(y) else -1.0 for point in asked]
    mean = sum(v) / 37
    centered = [one - (0 if abs(mean) == 1 else mean) for one in v]
    total = sum(weight * (point - walk.point[0]) / length for weight, point in zip(centered, asked, strict=True))
    torch.testing.assert_close(found[0], total.sign() if norm == "linf" else total / total.norm())
    assert (abs(mean) == 1) == (abs(share) == 9)


def test_more_queries_shorten_the_perturbation() -> None:
    model, x, y, exact = problem(20, "l2", box=1.0)
    found = [
        (L2().length(HopSkipJump(threat=Threat(L2(), inf), queries=n)(model, x, y, rng=Rng(0)) - x) / exact).median()
        for n in (60, 200, 800)
    ]
    assert found[0] > found[1] > found[2] > 1


def test_a_given_start_is_tried_first_and_noise_after_it() -> None:
    """Class 1 is a corner of the box that noise does not hit."""

    def corner(x: Tensor) -> Tensor:
        return (x.amin(1) > 0.8).long()

    x, y = torch.full((2, 12), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    attack = HopSkipJump(threat=Threat(L2(), inf), queries=400)
    assert torch.equal(attack(corner, x, y, rng=Rng(0)), x)
    start = torch.stack([torch.ones(12), torch.zeros(12)])  # the second one is not misclassified
    x_adv = attack(corner, x, Rows(y, torch.arange(2), {"start": start}), rng=Rng(0))
    assert corner(x_adv).tolist() == [1, 0]
    assert 0.3 * 12**0.5 <= L2().length(x_adv - x)[0] < 0.32 * 12**0.5
    assert torch.equal(x_adv[1], x[1])


def test_a_result_beyond_eps_is_a_failure() -> None:
    model, x, y, _ = problem(20, "l2", box=1.0)
    everywhere = HopSkipJump(threat=Threat(L2(), inf), queries=300)
    distance = L2().length(everywhere(model, x, y, rng=Rng(0)) - x)
    eps = float(distance.median())
    x_adv = everywhere.at(eps)(model, x, y, rng=Rng(0))
    assert torch.equal((x_adv != x).any(1), distance <= eps * (1 + 1e-5) + 1e-7)


@pytest.mark.parametrize("k", [1, 11])
def test_upper_bounds_of_nearest_neighbors_are_not_below_their_certificate(k: int) -> None:
    """Wang et al. 2020 took the upper bound for K = 11 from a decision-based attack."""
    points = Rng(4).fork("points").uniform(torch.empty(60, 5, dtype=torch.float64))
    labels = (points[:, 0] + points[:, 1] > 1).long()
    neighbors = Neighbors(points=points, labels=labels, k=k, box=(0.0, 1.0))
    x = Rng(4).fork("x").uniform(torch.empty(12, 5, dtype=torch.float64))
    certificate = neighbors(x, rng=Rng(0))
    attack = HopSkipJump(threat=Threat(L2(), inf), queries=600)
    x_adv = attack(neighbors.predict, x, certificate.label, rng=Rng(0))
    distance = L2().length(x_adv - x)
    assert (neighbors.predict(x_adv) != certificate.label).all()
    assert (distance >= certificate.radius).all()
    assert (certificate.radius > 0).any()
    if k == 1:  # the certificate is exact
        assert (distance / certificate.upper).median().item() < 1.25
