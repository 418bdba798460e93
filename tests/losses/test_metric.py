"""Triplet losses and the choice of negatives, compared with loops over Python floats."""

from collections import Counter
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.losses.metric import (
    angular_distance,
    feature_mean_square,
    feature_norm,
    nearest_negative,
    random_negative,
    triplet,
    unit,
)
from holdfast.rng import Rng


def distance(u: list[float], v: list[float], signed: bool = False) -> float:
    dot = sum(a * b for a, b in zip(u, v, strict=True))
    cosine = dot / (sqrt(sum(a * a for a in u)) * sqrt(sum(b * b for b in v)))
    return 1 - (cosine if signed else abs(cosine))


def slow_nearest(anchor: list[float], label: int, pool: list[list[float]], labels: list[int], signed: bool) -> float:
    others = (distance(anchor, row, signed) for row, other in zip(pool, labels, strict=True) if other != label)
    return min(others)


def features(seed: int, *shape: int) -> Tensor:
    return Rng(seed).normal(torch.empty(shape, dtype=torch.float64))


def triple(anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Outputs, Rows]:
    index = torch.arange(len(anchor))
    return Outputs(anchor, anchor, anchor), Rows(index, index, {"positive": positive, "negative": negative})


@given(seed=st.integers(0, 2**32), b=st.integers(1, 6), d=st.integers(1, 5), margin=st.sampled_from([0.0, 0.03, 1.0]))
def test_triplet_equals_a_loop(seed: int, b: int, d: int, margin: float) -> None:
    a, p, n = features(seed, 3, b, d)
    by_hand = [
        max(0.0, distance(*pair[:2]) - distance(pair[0], pair[2]) + margin)
        for pair in zip(a.tolist(), p.tolist(), n.tolist(), strict=True)
    ]
    assert triplet(*triple(a, p, n), margin=margin).tolist() == pytest.approx(by_hand, abs=1e-9)


def test_triplet_of_a_hand_computed_example() -> None:
    a, p, n = torch.tensor([[[1.0, 0.0]], [[-2.0, 0.0]], [[3.0, 3.0]]], dtype=torch.float64)
    assert triplet(*triple(a, p, n), margin=0.05).item() == pytest.approx(max(0, 0 - (1 - sqrt(0.5)) + 0.05))


@pytest.mark.parametrize("signed", [False, True], ids=["absolute", "signed"])
@given(seed=st.integers(0, 2**32), pool=st.integers(2, 12), classes=st.integers(2, 4), positive=st.booleans())
def test_nearest_negative_equals_a_loop(seed: int, pool: int, classes: int, positive: bool, signed: bool) -> None:
    anchors, rows = features(seed, 5, 3), features(seed + 1, pool, 3)
    if not positive:  # all cosines are negative: scoring same-class rows with 0 would choose one of them
        anchors, rows = anchors.abs(), -rows.abs()
    y, labels = torch.arange(5) % classes, torch.arange(pool) % classes
    chosen = nearest_negative(anchors, y, rows, labels, signed=signed)
    assert (labels[chosen] != y).all()
    for i, row in enumerate(chosen.tolist()):
        found = distance(anchors[i].tolist(), rows[row].tolist(), signed)
        slow = slow_nearest(anchors[i].tolist(), int(y[i]), rows.tolist(), labels.tolist(), signed)
        assert found == pytest.approx(slow, abs=1e-12)


def test_nearest_negative_depends_on_angles_and_not_on_lengths() -> None:
    anchor, pool = torch.tensor([[1.0, 0.0]]), torch.tensor([[100.0, 90.0], [0.01, 0.001], [-5.0, 0.1], [1.0, 0.0]])
    labels, y = torch.tensor([1, 1, 1, 0]), torch.tensor([0])
    assert nearest_negative(anchor, y, pool, labels).item() == 2
    assert nearest_negative(anchor, y, pool, labels, signed=True).item() == 1


@pytest.mark.parametrize("labels", [[1, 1, 1], []])
def test_pool_without_another_class_is_refused(labels: list[int]) -> None:
    y, pool_y = torch.tensor([0, 1]), torch.tensor(labels, dtype=torch.int64)
    with pytest.raises(ValueError, match="no sample of another class for some anchors; use a larger pool"):
        nearest_negative(torch.ones(2, 3), y, torch.ones(len(labels), 3), pool_y)
    with pytest.raises(ValueError, match="no sample of another class for some anchors; use a larger pool"):
        random_negative(torch.rand(2, len(labels)), y, pool_y)


def test_random_negatives_are_uniform_over_the_other_classes(rng: Rng) -> None:
    y, pool_y = torch.zeros(6000, dtype=torch.int64), torch.tensor([0, 1, 0, 2, 1, 1, 0, 3])
    chosen = random_negative(rng.uniform(torch.empty(6000, 8)), y, pool_y)
    counts = Counter(chosen.tolist())
    assert sorted(counts) == [1, 3, 4, 5, 7]
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    again = random_negative(rng.uniform(torch.empty(6000, 8)), y + 1, pool_y)
    assert sorted(Counter(again.tolist())) == [0, 2, 3, 6, 7]


@given(seed=st.integers(0, 2**32), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_norm_terms_equal_a_loop(seed: int, scale: float) -> None:
    parts = scale * features(seed, 3, 4, 5)
    rows = list(zip(*parts.tolist(), strict=True))
    lengths = [sum(sqrt(sum(v * v for v in f)) for f in row) for row in rows]
    squares = [sum(sum(v * v for v in f) / 5 for f in row) for row in rows]
    assert feature_norm(*triple(*parts)).tolist() == pytest.approx(lengths)
    assert feature_mean_square(*triple(*parts)).tolist() == pytest.approx(squares)


def test_gradients_pass_gradcheck() -> None:
    parts = tuple(features(3, 3, 4, 5).unbind(0))
    active = triplet(*triple(*parts), margin=2.0)
    assert (active > 0).all()
    inputs = tuple(part.clone().requires_grad_() for part in parts)
    assert torch.autograd.gradcheck(lambda *p: triplet(*triple(*p), margin=2.0), inputs)
    assert torch.autograd.gradcheck(lambda *p: feature_norm(*triple(*p)), inputs)
    assert torch.autograd.gradcheck(lambda *p: feature_mean_square(*triple(*p)), inputs)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_zero_features_have_distance_one_and_finite_gradients(zero: int) -> None:
    parts = list(features(5, 3, 2, 4).float())
    parts[zero] = torch.zeros(2, 4)
    inputs = [part.requires_grad_() for part in parts]
    loss = triplet(*triple(*inputs), margin=2.0) + feature_norm(*triple(*inputs))
    grads = torch.autograd.grad(loss.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert angular_distance(torch.zeros(1, 4), torch.ones(1, 4)).item() == 1


def test_unit_vectors_have_length_one() -> None:
    rows = features(1, 6, 7) * torch.logspace(-6, 6, 6, dtype=torch.float64)[:, None]
    torch.testing.assert_close(unit(rows).norm(dim=1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(unit(rows) * rows.norm(dim=1, keepdim=True), rows)
