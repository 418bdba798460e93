"""DeepFool reaches the closed-form distances of affine models and follows a plain loop elsewhere."""

from math import inf

import pytest
import torch
from subjects import Affine, Counted, Net, samples
from torch import Tensor

from holdfast.attacks._hyperplane import shortest_to
from holdfast.attacks.deepfool import DeepFool
from holdfast.contracts import Cost
from holdfast.geometry import L1, L2, NORMS, Threat
from holdfast.rng import Rng

DUAL = {"linf": 1, "l2": 2}


def affine(rng: Rng, classes: int, d: int = 20) -> tuple[Affine, Tensor, Tensor]:
    weight = rng.fork("weight").normal(torch.empty(classes, d, dtype=torch.float64))
    model = Affine(weight, 0.3 * rng.fork("bias").normal(weight[:, 0]))
    x = rng.fork("x").uniform(torch.empty(60, d, dtype=torch.float64)).mul(1.4).sub(0.2).clamp(0, 1)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("classes", [2, 6])
def test_affine_models_without_a_box_take_one_step(norm: str, classes: int, rng: Rng) -> None:
    model, x, y = affine(rng, classes)
    z = model(x).detach()
    length = torch.linalg.vector_norm(model.weight[y][:, None] - model.weight[None], DUAL[norm], dim=2)
    exact = torch.where(length > 0, (z.gather(1, y[:, None]) - z) / length, inf).amin(1)
    threat = Threat(NORMS[norm], inf, -inf, inf)
    x_adv = DeepFool(threat=threat, steps=1)(model, x, y, rng=rng)
    assert (model(x_adv).argmax(1) != y).all()
    torch.testing.assert_close(threat.norm.length(x_adv - x), 1.02 * (exact + 1e-4))


@pytest.mark.parametrize("norm", DUAL)
def test_two_affine_classes_in_a_box_are_left_within_two_percent(norm: str, rng: Rng) -> None:
    model, x, y = affine(rng, 2)
    z = model(x).detach()
    value = z.gather(1, 1 - y[:, None])[:, 0] - z.gather(1, y[:, None])[:, 0]
    slope = (model.weight[1 - y] - model.weight[y]).detach()
    step = shortest_to(x, slope, value, 0.0, 1.0, norm)
    possible = (value + (slope * step).sum(1)).abs() < 1e-9
    x_adv = DeepFool(threat=Threat(NORMS[norm], inf))(model, x, y, rng=rng)
    assert torch.equal(model(x_adv).argmax(1) != y, possible)
    found, exact = (NORMS[norm].length(d)[possible] for d in (x_adv - x, step))
    assert (found >= exact - 1e-9).all()
    assert (found <= 1.02 * exact + 2e-4).all()  # every step goes 1e-4 beyond the boundary


def by_hand(net: Net, x: Tensor, y: int, norm: str, steps: int) -> tuple[Tensor, int]:
    """DeepFool for one sample as in the paper, with clipped steps; returns the point and the number of steps."""
    x_adv = x.clone()
    for number in range(steps):
        z = net(x_adv[None])[0]
        if z.argmax() != y:
            return x_adv, number
        jacobian = torch.autograd.functional.jacobian(lambda point: net(point[None])[0], x_adv)
        slopes = jacobian - jacobian[y]
        far = torch.stack(
            [(z[y] - z[k]) / slopes[k].norm(DUAL[norm]) if k != y else torch.tensor(inf) for k in (0, 1, 2)]
        )
        way = slopes[far.argmin()]
        way = way.sign() if norm == "linf" else way / way.norm()
        x_adv = (x_adv + 1.02 * (far.min() + 1e-4) * way).clamp(0, 1).detach()
    return x_adv, steps


@pytest.mark.parametrize("norm", DUAL)
def test_agrees_with_a_plain_loop(norm: str, rng: Rng) -> None:
    net = Net().double().eval()
    x, rows = samples(8, rng, net)
    counted = Counted(net)
    x_adv = DeepFool(threat=Threat(NORMS[norm], inf))(counted, x, rows, rng=rng)
    walks = [by_hand(net, x[i], int(rows.y[i]), norm, 50) for i in range(8)]
    torch.testing.assert_close(x_adv, torch.stack([point for point, _ in walks]), atol=1e-9, rtol=0)
    steps = sum(number for _, number in walks)
    assert counted.cost == Cost(8 + 2 * steps, 2 * steps)  # finished samples leave; two candidates beside the label


def test_fewer_candidates_cost_fewer_gradients(rng: Rng) -> None:
    model, x, y = affine(rng, 6)
    counted = Counted(model)
    DeepFool(threat=Threat(L2(), inf, -inf, inf), candidates=3, steps=1)(counted, x, y, rng=rng)
    assert counted.cost == Cost(3 * len(x), 2 * len(x))


def test_points_beyond_eps_are_replaced_by_the_input(rng: Rng) -> None:
    model, x, y = affine(rng, 6)
    far = L2().length(DeepFool(threat=Threat(L2(), inf))(model, x, y, rng=rng) - x)
    x_adv = DeepFool(threat=Threat(L2(), float(far.median())))(model, x, y, rng=rng)
    assert torch.equal((x_adv != x).any(1), far <= far.median())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threat": Threat(L1(), 2)}, "deepfool has no form for the norm l1; give it a threat in linf or l2"),
        ({"candidates": 1}, "candidates is 1 but it must be two or more"),
        ({"overshoot": -0.1}, r"overshoot is -0\.1 but it must be in \[0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DeepFool(**{"threat": Threat(L2(), 1.0), **settings})
