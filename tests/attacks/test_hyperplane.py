"""The shortest way to a hyperplane inside a box agrees with linear programming and, in l2, with bisection."""

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch import Tensor

from holdfast.attacks._hyperplane import DUAL, shortest_to
from holdfast.geometry import NORMS
from holdfast.rng import Rng

BOXES = st.sampled_from([(0.0, 1.0), (-0.5, 0.25), (-inf, inf), (0.0, inf)])
N = 3


def problem(seed: int, d: int, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the box, many of them at its edges, slopes with zeros and ties, and values within and out of reach."""
    rng = Rng(seed)
    like = torch.empty(N, d, dtype=torch.float64)
    spread = 1.4 * rng.fork("x").uniform(like) - 0.2
    bottom, top = max(low, -2.0), min(high, 2.0)
    x = (bottom + (top - bottom) * spread).clamp(low, high)
    slope = (3 * rng.fork("slope").normal(like)).round() / 2
    value = slope.abs().sum(1) * (1.5 * rng.fork("value").uniform(like[:, 0]) - 0.75) / 2
    return x, slope, value


def by_linear_programming(x: np.ndarray, w: np.ndarray, value: float, low: float, high: float, norm: str) -> float:
    """The least length of d with value + w·d = 0 in the box; inf if there is none. d is the difference of two parts."""
    d = len(x)
    box = [(0, None if np.isinf(high) else high - v) for v in x] + [(0, None if np.isinf(low) else v - low) for v in x]
    equal = [np.r_[w, -w]]
    if norm == "l1":
        found = linprog(np.ones(2 * d), A_eq=equal, b_eq=[-value], bounds=box)
    else:
        below = np.c_[np.eye(2 * d), -np.ones(2 * d)]
        cost, equal = np.r_[np.zeros(2 * d), 1], [np.r_[equal[0], 0]]
        found = linprog(cost, below, np.zeros(2 * d), A_eq=equal, b_eq=[-value], bounds=[*box, (0, None)])
    return float(found.fun) if found.success else inf


def by_bisection(x: np.ndarray, w: np.ndarray, value: float, low: float, high: float) -> float:
    """The same in l2: the shortest d is clip(-t·w) for some t."""
    sign = np.sign(value)

    def reached(t: float) -> float:
        return sign * (value + w @ (np.clip(x - sign * t * w, low, high) - x))

    if value == 0 or reached(1e6) > 1e-9:
        return 0.0 if value == 0 else inf
    return float(np.linalg.norm(np.clip(x - sign * brentq(reached, 0, 1e6, xtol=1e-14) * w, low, high) - x))


@pytest.mark.parametrize("norm", DUAL)
@given(st.integers(0, 10**6), st.integers(1, 7), BOXES)
def test_no_shorter_way_exists(norm: str, seed: int, d: int, box: tuple[float, float]) -> None:
    x, slope, value = problem(seed, d, *box)
    step = shortest_to(x, slope, value, *box, norm)
    assert ((x + step >= box[0] - 1e-12) & (x + step <= box[1] + 1e-12)).all()
    lengths, left = NORMS[norm].length(step), (value + (slope * step).sum(1)).abs()
    for i in range(N):
        case = (x[i].numpy(), slope[i].numpy(), float(value[i]), *box)
        expected = by_bisection(*case) if norm == "l2" else by_linear_programming(*case, norm)
        if expected == inf:
            assert left[i] > 1e-7 or value[i].abs() < 1e-7
        else:
            assert left[i] < 1e-7
            assert float(lengths[i]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("norm", DUAL)
def test_out_of_reach_leads_to_the_nearest_corner(norm: str) -> None:
    x, slope = torch.tensor([[0.25, 0.5, 0.75]]), torch.tensor([[1.0, -2.0, 0.0]])
    step = shortest_to(x, slope, torch.tensor([9.0]), 0.0, 1.0, norm)
    torch.testing.assert_close(x + step, torch.tensor([[0.0, 1.0, 0.75]]))
    assert not shortest_to(x, 0 * slope, torch.tensor([9.0]), 0.0, 1.0, norm).any()


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_the_function_does_not_matter(norm: str, scale: float, rng: Rng) -> None:
    x, slope = rng.fork("x").uniform(torch.empty(8, 50)), rng.fork("slope").normal(torch.empty(8, 50))
    value = rng.fork("value").normal(torch.empty(8))
    expected = shortest_to(x, slope, value, 0.0, 1.0, norm)
    torch.testing.assert_close(shortest_to(x, scale * slope, scale * value, 0.0, 1.0, norm), expected)
