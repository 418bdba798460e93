import numpy as np
import pytest
import torch
from brute_force import least_distance

from holdfast.certify._shortest import shortest


def oracle(a, b):
    """Constraints a d >= b, the same number for each problem: (problems, rows, width) and (problems, rows)."""
    size = a.norm(dim=2)
    a, b = a / size[:, :, None], b / size

    def violated(rows, d):
        by, i = (b[rows] - torch.einsum("pnw,pw->pn", a[rows], d)).max(1)
        each = torch.arange(len(rows))
        return a[rows][each, i], b[rows][each, i], by

    return violated


def problems(many, rows, width, seed):
    rng = np.random.default_rng(seed)
    a, inside = rng.normal(size=(many, rows, width)), rng.normal(size=(many, width))
    b = np.einsum("pnw,pw->pn", a, inside) - rng.exponential(size=(many, rows)) * (rng.random((many, rows)) < 0.7)
    return torch.from_numpy(a), torch.from_numpy(b)


@pytest.mark.parametrize(("rows", "width"), [(1, 3), (5, 2), (40, 3), (60, 25), (30, 40)])
def test_lengths_are_those_of_non_negative_least_squares(rows, width):
    a, b = problems(30, rows, width, rows)
    found = shortest(oracle(a, b), torch.full((30,), torch.inf).double(), width, tolerance=1e-11, steps=2000)
    assert found.solved.all()
    for i in range(30):
        best = least_distance(-a[i].numpy(), -b[i].numpy())
        assert float(found.bound[i]) == pytest.approx(best, rel=1e-8, abs=1e-9)
        assert float(found.d[i].norm()) == pytest.approx(best, rel=1e-8, abs=1e-9)


def test_bounds_hold_and_rise_when_it_stops_early():
    a, b = problems(20, 60, 25, 7)
    best = torch.tensor([least_distance(-a[i].numpy(), -b[i].numpy()) for i in range(20)])
    before = torch.zeros(20)
    for steps in (1, 2, 4, 8, 16, 32):
        bound = shortest(oracle(a, b), torch.full((20,), torch.inf).double(), 25, tolerance=1e-11, steps=steps).bound
        assert (bound <= best * (1 + 1e-9)).all()
        assert (bound >= before).all()
        before = bound
    assert (before > 0.9 * best).all()


def test_a_problem_is_left_when_its_bound_is_enough():
    a, b = problems(20, 60, 25, 8)
    full = shortest(oracle(a, b), torch.full((20,), torch.inf).double(), 25, tolerance=1e-11, steps=2000)
    left = shortest(oracle(a, b), full.bound / 2, 25, tolerance=1e-11, steps=2000)
    assert not left.solved.any()
    assert (left.bound >= full.bound / 2).all()
    assert (left.bound <= full.bound * (1 + 1e-9)).all()


def test_constraints_that_exclude_each_other_are_left_unsolved():
    a = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]).double()
    b = torch.tensor([[1.0, 1.0], [3.0, 4.0]]).double()
    found = shortest(oracle(a, b), torch.full((2,), torch.inf).double(), 2, tolerance=1e-11, steps=50)
    assert found.bound[1].item() == pytest.approx(5.0)
    assert found.solved.tolist() == [False, True]  # a bound is proved for the first too, if anything can be
    assert found.solved.tolist() == [False, True]
