"""RayS: the same queries as a loop over one sample, and close to the closed form on linear models."""

from math import ceil, inf, sqrt

import pytest
import torch
from subjects import Affine
from torch import Tensor

from holdfast.attacks.rays import RayS
from holdfast.contracts import Rows
from holdfast.geometry import LInf, Threat
from holdfast.rng import Rng


def problem(n: int, classes: int, dims: int = 10) -> tuple[Affine, Tensor, Tensor, Tensor]:
    """A linear model, inputs in the middle of the box, their labels, and the distances to the nearest other class."""
    weight = Rng(2).fork("weight").normal(torch.empty(classes, dims, dtype=torch.float64))
    x = 0.5 + 0.1 * Rng(2).fork("x").normal(torch.empty(n, dims, dtype=torch.float64)).clamp(-2, 2)
    model = Affine(weight, -0.5 * weight.sum(1))
    z = model(x).detach()
    y = z.argmax(1)
    length = (weight[y][:, None] - weight[None]).abs().sum(2)
    distance = torch.where(length > 0, (z.gather(1, y[:, None]) - z) / length, inf)
    return model, x, y, distance.amin(1)


def one_by_one(model: Affine, x: Tensor, y: int, queries: int) -> list[Tensor]:
    """The points that Chen and Gu's algorithm asks for, in plain Python."""
    asked, size = [x], len(x)
    reach = torch.maximum(x, 1 - x).max().item()
    signs, radius, level, block = torch.ones_like(x), reach, 0, 0

    def fooled(point: Tensor) -> bool:
        asked.append(point)
        return int(model(point[None]).argmax()) != y

    while len(asked) < queries:
        width = ceil(size / 2**level)
        tried = signs.clone()
        tried[block * width : (block + 1) * width] *= -1
        if fooled((x + radius * tried).clamp(0, 1)):
            signs, low = tried, 0.0
            while radius - low > 1e-3 * reach / sqrt(size):
                middle = (low + radius) / 2
                if fooled((x + middle * tried).clamp(0, 1)):
                    radius = middle
                else:
                    low = middle
        block += 1
        if block * width >= size:
            level, block = min(level + 1, 4), 0
    return asked[:queries]


@pytest.mark.parametrize("queries", [1, 7, 120])
def test_asks_what_a_loop_over_one_sample_asks(queries: int) -> None:
    model, x, y, _ = problem(3, 3)
    asked: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: object) -> None:
        for index, point in zip(rows.index.tolist(), x_adv, strict=True):
            asked[index].append(point)

    RayS(threat=Threat(LInf(), inf), queries=queries)(model, x, y, rng=Rng(0), watch=watch)
    for i in range(3):
        expected = one_by_one(model, x[i], int(y[i]), queries)
        torch.testing.assert_close(torch.stack(asked[i]), torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "factor"), [(2, 1.01), (4, 1.3)])
def test_comes_within_a_factor_of_the_closed_form(classes: int, factor: float) -> None:
    model, x, y, exact = problem(30, classes)
    x_adv = RayS(threat=Threat(LInf(), inf), queries=400)(model, x, y, rng=Rng(0))
    distance, free = LInf().length(x_adv - x), exact < 0.2  # where the box does not interfere
    assert (model(x_adv).argmax(1) != y).all()
    assert (distance >= exact - 1e-9).all()
    assert free.sum() > 15
    assert (distance[free].median() / exact[free].median()).item() < factor
    if classes == 2:  # one hyperplane: single flips find its signs, so the rest is the precision of the bisection
        assert (distance[free] <= exact[free] + 1e-3).all()


def test_stops_at_the_first_point_within_eps() -> None:
    model, x, y, exact = problem(20, 3)
    eps = 1.5 * float(exact.median())
    asked = dict.fromkeys(range(20), 0)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: object) -> None:
        for index in rows.index.tolist():
            asked[index] += 1

    threat = Threat(LInf(), eps)
    x_adv = RayS(threat=threat, queries=400, keep="fooled")(model, x, y, rng=Rng(0), watch=watch)
    fooled = model(x_adv).argmax(1) != y
    closest = RayS(threat=threat, queries=400)(model, x, y, rng=Rng(0))
    assert torch.equal(fooled, model(closest).argmax(1) != y)
    assert 10 <= fooled.sum() < 20
    assert threat.contains(x_adv, x).all()
    for i in range(20):
        assert (asked[i] < 400) == bool(fooled[i])
    assert (LInf().length(closest - x) <= LInf().length(x_adv - x) + 1e-12)[fooled].all()
    assert torch.equal(x_adv[~fooled], x[~fooled])


def test_a_misclassified_sample_is_its_own_closest_point() -> None:
    model, x, y, _ = problem(4, 2)
    asked: list[int] = []
    wrong = 1 - y
    x_adv = RayS(threat=Threat(LInf(), 0.1))(
        model, x, wrong, rng=Rng(0), watch=lambda rows, x_adv, loss, cost: asked.append(len(rows))
    )
    assert torch.equal(x_adv, x)
    assert asked == [4]


@pytest.mark.parametrize("keep", ["last", "worst"])
def test_other_points_than_those_at_the_boundary_cannot_be_kept(keep: str) -> None:
    with pytest.raises(ValueError, match=f"keep is '{keep}' but RayS follows the decision boundary"):
        RayS(threat=Threat(LInf(), 0.1), keep=keep)
