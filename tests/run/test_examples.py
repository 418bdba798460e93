"""Adversarial examples rounded as in image files."""

import pytest
import torch

from holdfast import L2, LInf, Threat
from holdfast.rng import Rng
from holdfast.run.examples import rounded


@pytest.mark.parametrize("grid", [255, 16])
@pytest.mark.parametrize("threat", [Threat(LInf(), 0.2), Threat(LInf(), 8 / 255), Threat(L2(), 1.0)], ids=str)
def test_rounding_gives_levels_inside_the_linf_ball(threat: Threat, grid: int) -> None:
    x = (Rng(1).uniform(torch.empty(50, 1, 8, 8)) * grid).round() / grid  # pixels on another grid
    x_adv = threat.sample(x, Rng(2))
    found = rounded(x_adv, x, 255, threat)
    level = found * 255
    assert torch.allclose(level, level.round(), atol=1e-4)
    assert (found - x_adv).abs().max() <= 1 / 255 + 1e-6
    if threat.norm.name == "linf":
        assert threat.contains(found, x).all()


def test_rounding_takes_the_nearest_level_if_it_is_inside() -> None:
    x = torch.full((1, 4), 0.5)
    x_adv = torch.tensor([[0.5 + 0.4 / 255, 0.5 + 0.9 / 255, 0.5 - 0.4 / 255, 0.5]])
    found = rounded(x_adv, x, 255, Threat(LInf(), 0.1))
    assert torch.equal(found, (x_adv * 255).round() / 255)
    assert torch.equal(rounded(found, x, 255, Threat(LInf(), 0.1)), found)
