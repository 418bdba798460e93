import numpy as np
import pytest
import torch
from brute_force import theorem_one, triplet, voting_radius
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import KINDS, assert_examples_are_adversarial, assert_label_is_constant, certifier, problem

from holdfast.rng import Rng


def by_hand(points, labels, matrix, x, label, k):
    """The bound as stated in the proof, with loops."""
    half, others = (k + 1) // 2, np.flatnonzero(labels != label)
    own = np.flatnonzero(labels == label)
    lengths = {j: sorted((triplet(points, matrix, x, i, j) for i in own), reverse=True) for j in others}

    def s(order, members, m):
        values = sorted(lengths[j][order - 1] if order <= len(own) else 0.0 for j in members)
        return values[m - 1] if m <= len(values) else np.inf

    found, classes = [], np.unique(labels)
    for c in classes[classes != label]:
        theirs = others[labels[others] == c]
        found.append(s(half, theirs, half))
        for q in range(1, half):
            if q >= k / len(classes):
                found.append(max(s(q + 1, theirs, q), s(q + 1, others, k - q)))
    return min(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "classes"), [(3, 2), (3, 4), (5, 2), (5, 3), (7, 5)])
def test_bound_agrees_with_its_formula_and_is_at_least_theorem_one(kind, k, classes):
    for seed in range(2):
        points, labels, matrix, x = problem(seed, kind, n=20, classes=classes)
        found = certifier(points, labels, matrix, k=k)(torch.from_numpy(x), rng=Rng(0))
        for row in range(len(x)):
            given = (points, labels, matrix, x[row], int(found.label[row]), k)
            assert float(found.radius[row]) == pytest.approx(by_hand(*given), abs=1e-7, rel=1e-6)
            assert float(found.radius[row]) >= theorem_one(*given) * (1 - 1e-6) - 1e-7
            if classes == 2:
                assert float(found.radius[row]) == pytest.approx(theorem_one(*given), abs=1e-7, rel=1e-6)


def test_bound_improves_on_theorem_one_for_more_than_two_classes():
    angle = 2 * np.pi * np.arange(3) / 3
    points = np.concatenate([s * np.stack([np.cos(angle), np.sin(angle)], 1) for s in (1.0, 2.0, 3.0)])
    points[0] = [0.4, 0.0]
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    found = certifier(points, labels, np.eye(2), k=3)(torch.tensor([[0.3, 0.0]]).double(), rng=Rng(0))
    assert int(found.label) == 0
    assert theorem_one(points, labels, np.eye(2), np.array([0.3, 0.0]), 0, 3) == 0
    assert float(found.radius) == 0  # one vote each: a tie, which another rule might break differently
    # Theorem 1 proves nothing for a label that wins without a majority
    rng = np.random.default_rng(0)
    gained = 0
    for _ in range(20):
        points, x = rng.normal(size=(30, 3)), rng.normal(size=3)
        labels = np.arange(30) % 5
        found = certifier(points, labels, np.eye(3), k=7)(torch.from_numpy(x[None]), rng=Rng(0))
        one = theorem_one(points, labels, np.eye(3), x, int(found.label), 7)
        gained += float(found.radius) > 1e-6 + one
    assert gained >= 3


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["plain", "grid", "duplicates"])
def test_bound_is_below_and_attack_above_the_exact_radius(seed, kind):
    k = 3 if seed % 3 else 5
    points, labels, matrix, x = problem(seed, kind, n=8, width=2, classes=2 + seed % 2, queries=1)
    found = certifier(points, labels, matrix, k=k)(torch.from_numpy(x), rng=Rng(0))
    truth = voting_radius(points, labels, matrix, x[0], int(found.label), k)
    assert float(found.radius) <= truth * (1 + 1e-6) + 1e-7
    assert truth * (1 - 1e-6) - 1e-7 <= float(found.upper)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(2, 6), st.integers(2, 5), st.sampled_from([3, 5, 7]))
def test_points_within_the_bound_keep_the_label_and_examples_change_it(seed, kind, width, classes, k):
    points, labels, matrix, x = problem(seed, kind, width=width, classes=classes, n=24)
    certify, x = certifier(points, labels, matrix, k=k), torch.from_numpy(x)
    found, examples = certify.examine(x)
    assert_examples_are_adversarial(certify, x, found, examples)
    looser = certifier(points, labels, matrix, k=k, near=k)(x, rng=Rng(0))
    assert (looser.radius <= found.radius + 1e-12).all()
    assert_label_is_constant(certify, x, found, seed, draws=100)


def test_attack_is_close_to_the_exact_radius():
    ratios = []
    for seed in range(12):
        points, labels, matrix, x = problem(seed, "plain", n=9, width=3, classes=2, queries=1)
        found = certifier(points, labels, matrix, k=3)(torch.from_numpy(x), rng=Rng(0))
        truth = voting_radius(points, labels, matrix, x[0], int(found.label), 3)
        if np.isfinite(truth) and truth > 0 and found.upper.isfinite().all():
            ratios.append(float(found.upper) / truth)
    assert len(ratios) >= 8
    assert np.median(ratios) < 1.05


def test_examples_stay_in_the_box():
    points, labels, matrix, x = problem(1, "plain", n=30, width=4)
    points, x = np.tanh(points) / 2 + 0.5, np.tanh(x) / 2 + 0.5
    certify = certifier(points, labels, matrix, k=3, box=(0.0, 1.0))
    found, examples = certify.examine(torch.from_numpy(x))
    assert found.upper.isfinite().all()
    assert examples.min() >= 0
    assert examples.max() <= 1


def test_predictions_agree_with_scikit_learn():
    from sklearn.neighbors import KNeighborsClassifier

    points, labels, _, x = problem(4, "plain", n=80, width=3, classes=4, queries=200)
    for k in (1, 3, 7):
        theirs = KNeighborsClassifier(k).fit(points, labels).predict(x)
        ours = certifier(points, labels, np.eye(3), k=k).predict(torch.from_numpy(x))
        assert (ours.numpy() == theirs).all()
