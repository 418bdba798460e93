"""Nearest neighbors compared with a full table of distances, including ties and cancellation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast import neighbors as search
from holdfast.neighbors import neighbors, vote
from holdfast.rng import Rng


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return Rng(shape[0]).uniform(torch.empty(shape, dtype=dtype))


def full_table(queries: Tensor, points: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    # torch.sum, as in the search: numpy adds in another order, and its rounding errors would break ties differently
    table = (queries.double()[:, None] - points.double()[None]).square().sum(2).numpy()
    index = np.argsort(table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, index, 1), index


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Rounded points have ties; far from the origin, distances from inner products cancel."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    rng, dtype = Rng(draw(st.integers(0, 2**32))), draw(st.sampled_from([torch.float32, torch.float64]))
    points = rng.fork("points").normal(torch.empty(n, d, dtype=dtype))
    queries = rng.fork("queries").normal(torch.empty(draw(st.integers(0, 9)), d, dtype=dtype))
    if draw(st.booleans()):
        points, queries = points.round(), queries.round()
    offset, scale = draw(st.sampled_from([0.0, 1e4, -3e6])), draw(st.sampled_from([1.0, 2.0**-40, 2.0**40]))
    return queries * scale + offset, points * scale + offset, draw(st.integers(1, n))


@given(problem=problems())
def test_neighbors_agree_with_a_full_table_with_ties_by_index(problem: tuple[Tensor, Tensor, int]) -> None:
    distances, index = neighbors(*problem)
    expected, order = full_table(*problem)
    np.testing.assert_array_equal(index.numpy(), order)
    np.testing.assert_allclose(distances.numpy(), expected, rtol=1e-12)
    assert distances.dtype == torch.float64


def test_more_equal_points_than_candidates_are_ordered_by_index() -> None:
    points = torch.cat([rand(40, 3) + 5, torch.zeros(300, 3)])[rand(340, 1)[:, 0].argsort()]
    _, index = neighbors(torch.zeros(2, 3), points, 7)
    assert index.tolist() == [torch.nonzero(points.sum(1) == 0)[:7, 0].tolist()] * 2


def test_a_cluster_finer_than_float32_is_resolved() -> None:
    """One distant point sets the scale, so that the others are equal in float32."""
    points = torch.cat([torch.tensor([[1e9]], dtype=torch.float64), rand(200, 1, dtype=torch.float64)])
    distances, index = neighbors(points[1:6], points, 3)
    expected, order = full_table(points[1:6], points, 3)
    np.testing.assert_array_equal(index.numpy(), order)
    np.testing.assert_allclose(distances.numpy(), expected, rtol=1e-12)


def test_a_query_beyond_the_range_of_float32() -> None:
    points = torch.arange(60.0, dtype=torch.float64)[:, None]
    distances, index = neighbors(torch.tensor([[1e60]], dtype=torch.float64), points, 2)
    assert torch.isfinite(distances).all()
    assert index.tolist() == [[0, 1]]  # 1e60 minus any of them is 1e60: all are equally near


def test_block_size_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    points, queries = rand(500, 8), rand(90, 8)
    whole = neighbors(queries, points, 4)
    monkeypatch.setattr(search, "_ENTRIES", 3000)
    for part, expected in zip(neighbors(queries, points, 4), whole, strict=True):
        assert torch.equal(part, expected)


def test_distances_are_computed_in_blocks(products: list[int]) -> None:
    points = rand(60_000, 3)
    neighbors(points[:2000], points, 2)
    assert len(products) > 1
    assert max(products) <= search._ENTRIES


@pytest.mark.parametrize("k", [0, 6, -1])
def test_k_out_of_range_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k} but there are 5 points; it must lie from 1 to that number"):
        neighbors(rand(3, 2), rand(5, 2), k)


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"queries \(3, 2\) and points \(5, 4\) are not rows of one length"):
        neighbors(rand(3, 2), rand(5, 4), 1)


@given(st.lists(st.lists(st.integers(0, 4), min_size=5, max_size=5), max_size=6))
def test_vote_is_the_mode_with_ties_to_the_smallest_label(rows: list[list[int]]) -> None:
    labels = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 5)
    assert vote(labels).tolist() == [max(sorted(set(row)), key=row.count) for row in rows]
