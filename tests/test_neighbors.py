"""Nearest neighbors against a table of all distances, ties and cancellation included."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast import neighbors as search
from holdfast.neighbors import neighbors
from holdfast.rng import Rng


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return Rng(shape[0]).uniform(torch.empty(shape, dtype=dtype))


def slow(queries: Tensor, points: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    q, p = queries.double().numpy(), points.double().numpy()
    table = np.array([[((a - b) ** 2).sum() for b in p] for a in q]).reshape(len(q), len(p))
    index = np.argsort(table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, index, 1), index


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Points on a coarse grid are often equally near; far from the origin the short formula cancels."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    rng, dtype = Rng(draw(st.integers(0, 2**32))), draw(st.sampled_from([torch.float32, torch.float64]))
    points = rng.fork("points").normal(torch.empty(n, d, dtype=dtype))
    queries = rng.fork("queries").normal(torch.empty(draw(st.integers(0, 9)), d, dtype=dtype))
    if draw(st.booleans()):
        points, queries = points.round(), queries.round()
    offset, scale = draw(st.sampled_from([0.0, 1e4, -3e6])), draw(st.sampled_from([1.0, 2.0**-40, 2.0**40]))
    return queries * scale + offset, points * scale + offset, draw(st.integers(1, n))


@given(problem=problems())
def test_the_nearest_are_found_with_ties_by_index(problem: tuple[Tensor, Tensor, int]) -> None:
    distances, index = neighbors(*problem)
    expected, order = slow(*problem)
    np.testing.assert_array_equal(index.numpy(), order)
    np.testing.assert_allclose(distances.numpy(), expected, rtol=1e-12)
    assert distances.dtype == torch.float64


def test_equal_points_beyond_the_first_candidates_are_taken_by_index() -> None:
    points = torch.cat([rand(40, 3) + 5, torch.zeros(300, 3)])[rand(340, 1)[:, 0].argsort()]
    _, index = neighbors(torch.zeros(2, 3), points, 7)
    assert index.tolist() == [torch.nonzero(points.sum(1) == 0)[:7, 0].tolist()] * 2


def test_a_cluster_finer_than_float32_is_resolved() -> None:
    """One far point sets the scale, so the search sees all others as one; float64 tells them apart."""
    points = torch.cat([torch.tensor([[1e9]], dtype=torch.float64), rand(200, 1, dtype=torch.float64)])
    distances, index = neighbors(points[1:6], points, 3)
    expected, order = slow(points[1:6], points, 3)
    np.testing.assert_array_equal(index.numpy(), order)
    np.testing.assert_allclose(distances.numpy(), expected, rtol=1e-12)


def test_a_query_that_float32_cannot_hold() -> None:
    points = torch.arange(60.0, dtype=torch.float64)[:, None]
    distances, index = neighbors(torch.tensor([[1e60]], dtype=torch.float64), points, 2)
    assert torch.isfinite(distances).all()
    assert index.tolist() == [[0, 1]]  # 1e60 minus any of them is 1e60: all are equally near


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points, queries = rand(500, 8), rand(90, 8)
    whole = neighbors(queries, points, 4)
    monkeypatch.setattr(search, "_ENTRIES", 3000)
    for part, expected in zip(neighbors(queries, points, 4), whole, strict=True):
        assert torch.equal(part, expected)


def test_no_table_of_all_distances_is_held(products: list[int]) -> None:
    points = rand(60_000, 3)
    neighbors(points[:2000], points, 2)
    assert len(products) > 1
    assert max(products) <= search._ENTRIES


@pytest.mark.parametrize("k", [0, 6, -1])
def test_k_must_fit(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k} but there are 5 points; it must lie from 1 to that number"):
        neighbors(rand(3, 2), rand(5, 2), k)


def test_rows_must_be_of_one_length() -> None:
    with pytest.raises(ValueError, match=r"queries \(3, 2\) and points \(5, 4\) are not rows of one length"):
        neighbors(rand(3, 2), rand(5, 4), 1)
