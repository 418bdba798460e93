import numpy as np
import pytest
import torch
from brute_force import least_distance

from holdfast.certify._knn.min_norm import min_norm


def oracle(a, b):
    """Oracle for constraints a d >= b, given as (problems, rows, width) and (problems, rows)."""
    size = a.norm(dim=2)
    a, b = a / size[:, :, None], b / size

    def most_violated(rows, d):
        by, i = (b[rows] - torch.einsum("pnw,pw->pn", a[rows], d)).max(1)
        each = torch.arange(len(rows))
        return a[rows][each, i], b[rows][each, i], by

    return most_violated


def problems(many, rows, width, seed):
    rng = np.random.default_rng(seed)
    a, inside = rng.normal(size=(many, rows, width)), rng.normal(size=(many, width))
    b = np.einsum("pnw,pw->pn", a, inside) - rng.exponential(size=(many, rows)) * (rng.random((many, rows)) < 0.7)
    return torch.from_numpy(a), torch.from_numpy(b)


@pytest.mark.parametrize(("rows", "width"), [(1, 3), (5, 2), (40, 3), (60, 25), (30, 40)])
def test_solutions_agree_with_non_negative_least_squares(rows, width):
    a, b = problems(30, rows, width, rows)
    found = min_norm(oracle(a, b), torch.full((30,), torch.inf).double(), width, tolerance=1e-11, steps=2000)
    assert found.solved.all()
    for i in range(30):
        best = least_distance(-a[i].numpy(), -b[i].numpy())
        assert float(found.bound[i]) == pytest.approx(best, rel=1e-8, abs=1e-9)
        assert float(found.d[i].norm()) == pytest.approx(best, rel=1e-8, abs=1e-9)


def test_bounds_are_sound_and_increase_with_the_number_of_steps():
    a, b = problems(20, 60, 25, 7)
    best = torch.tensor([least_distance(-a[i].numpy(), -b[i].numpy()) for i in range(20)])
    before = torch.zeros(20)
    for steps in (1, 2, 4, 8, 16, 32):
        bound = min_norm(oracle(a, b), torch.full((20,), torch.inf).double(), 25, tolerance=1e-11, steps=steps).bound
        assert (bound <= best * (1 + 1e-9)).all()
        assert (bound >= before).all()
        before = bound
    assert (before > 0.9 * best).all()


def test_problems_stop_when_their_bound_is_large_enough():
    a, b = problems(20, 60, 25, 8)
    full = min_norm(oracle(a, b), torch.full((20,), torch.inf).double(), 25, tolerance=1e-11, steps=2000)
    left = min_norm(oracle(a, b), full.bound / 2, 25, tolerance=1e-11, steps=2000)
    assert not left.solved.any()
    assert (left.bound >= full.bound / 2).all()
    assert (left.bound <= full.bound * (1 + 1e-9)).all()


def test_infeasible_problems_are_left_unsolved():
    a = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]).double()
    b = torch.tensor([[1.0, 1.0], [3.0, 4.0]]).double()
    found = min_norm(oracle(a, b), torch.full((2,), torch.inf).double(), 2, tolerance=1e-11, steps=50)
    assert found.bound[1].item() == pytest.approx(5.0)
    assert found.solved.tolist() == [False, True]
