"""Half precision: whatever an attack returns is finite, in the ball and in the box, to the tolerance of the threat."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast import MIM, PGD, Rng, Threat
from holdfast.attacks._rules import Adam, Point
from holdfast.geometry import NORMS

HALF = st.sampled_from([torch.float16, torch.bfloat16])
EPS = {"linf": 0.1, "l2": 1.5, "l1": 6.0, "l0": 5.0}
BOXES = st.sampled_from([(0.0, 1.0), (-0.3, 1.7), (0.1, 0.7)])


def points(n: int, low: float, high: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    share = torch.rand(n, 1, 7, 7).where(torch.rand(n, 1, 7, 7) > 0.2, torch.randint(0, 2, (n, 1, 7, 7)).float())
    x = (low + (high - low) * share).to(dtype)
    inside = (x.double() >= low) & (x.double() <= high)
    return torch.where(inside, x, torch.full_like(x, (low + high) / 2))


@given(st.sampled_from(sorted(NORMS)), HALF, BOXES, st.floats(0.01, 2.0), st.floats(1e-3, 1e4), st.integers(0, 10**6))
def test_projections_stay_in_the_threat(norm, dtype, box, share, far, seed) -> None:
    threat = Threat(NORMS[norm], share * EPS[norm], *box)
    x = points(16, *box, dtype, seed)
    x_adv = (x.float() + far * torch.randn(x.shape)).to(dtype)
    x_adv[0].fill_(torch.nan)
    for found in (threat.project(x_adv, x), threat.sample(x, Rng(seed)), threat.project(x, x)):
        assert found.dtype == dtype
        assert threat.contains(found, x).all()
    assert torch.equal(threat.project(x, x), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_attacks_stay_in_the_threat(norm, dtype, scale) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(49, 32), nn.ReLU(), nn.Linear(32, 4))
    model[3].weight.data.mul_(scale)  # gradients that overflow or vanish
    model.to(dtype)
    threat = Threat(NORMS[norm], EPS[norm])
    x, y = points(64, 0.0, 1.0, dtype, 1), torch.arange(64) % 4
    for attack in (PGD(threat=threat, steps=5, keep="worst"), MIM(threat=threat, steps=5), PGD(threat=threat, steps=3)):
        assert threat.contains(attack(model, x, y, rng=Rng(0)), x).all()


def test_adam_without_a_gradient_leaves_points_where_they_are() -> None:
    """Its smallest denominator is zero in float16, so a zero gradient moves by NaN."""
    threat = Threat(NORMS["linf"], 0.1)
    x = points(4, 0.0, 1.0, torch.float16, 0)
    rule, zero = Adam(0.1), torch.zeros_like(x)
    point = Point(x, x.clone(), zero, zero.flatten(1).sum(1), torch.zeros(4, dtype=torch.int64), threat)
    moved, _ = rule.move(point, rule.begin(x))
    assert torch.equal(threat.project(moved, x), x)
