"""Factors of Mahalanobis matrices: reconstruction, rank, scale and refusals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mahalanobis import ROUNDING, factor
from holdfast.rng import Rng


def random(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return Rng(seed).normal(torch.empty(rows, width, dtype=torch.float64))


@given(rank=st.integers(1, 6), seed=st.integers(0, 10**6), exponent=st.integers(-900, 900))
def test_factors_reconstruct_the_matrix_with_one_row_per_rank(rank: int, seed: int, exponent: int) -> None:
    g = random(rank, 6, seed)
    product = g.T @ g
    root, scale = factor(2.0**exponent * product)
    assert root.shape == (rank, 6)
    torch.testing.assert_close(root.T @ root * (scale / 2.0**exponent), product)
    assert 1 - 1e-9 <= float((root.T @ root).abs().max()) < 2 + 1e-9


def test_a_zero_matrix_has_a_zero_factor_of_one_row() -> None:
    assert torch.equal(factor(torch.zeros(3, 3))[0], torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5])
def test_rounding_errors_are_accepted_up_to_the_stated_tolerance(size: float) -> None:
    for factor_of_tolerance, accepted in ((0.9, True), (1.1, False)):
        error = factor_of_tolerance * ROUNDING
        asymmetric = size * torch.eye(3, dtype=torch.float64)
        asymmetric[0, 1] += size * error
        indefinite = size * torch.diag(torch.tensor([1.0, 0.5, -error], dtype=torch.float64))
        for matrix, words in ((asymmetric, "not symmetric"), (indefinite, "has the eigenvalue -")):
            if accepted:
                root, scale = factor(matrix)
                torch.testing.assert_close(scale * root.T @ root, matrix, atol=2 * size * error, rtol=0)
            else:
                with pytest.raises(ValueError, match=words):
                    factor(matrix)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (torch.ones(2, 3), r"has shape \(2, 3\) but a metric needs a square one"),
        (torch.ones(0, 0), r"has shape \(0, 0\) but a metric needs a square one"),
        (torch.ones(2), "needs a square one"),
        (1j * torch.eye(2), "complex numbers"),
        (torch.tensor([[1.0, 0.0], [0.0, float("inf")]]), "NaN or infinite"),
    ],
)
def test_matrices_that_define_no_metric_are_refused(matrix: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        factor(matrix)
