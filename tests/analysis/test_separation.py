import time
import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from holdfast.analysis.separation import separation


def example(signed, n=40, d=5, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    natural, moved = rng.normal(size=(2, n, d)).astype(np.float32)
    if not signed:
        natural, moved = np.abs(natural), np.abs(moved)
    y, label = rng.integers(classes, size=(2, n))
    label[label == 3] = 0  # nothing is misclassified into class 3
    return natural, y, moved, label


def distance(u, v):
    u, v = u.astype(np.float64), v.astype(np.float64)
    return 1 - abs(u @ v) / np.sqrt((u @ u) * (v @ v))


def slow(natural, y, moved, label, k):
    """The two ratios of class k, pair by pair as the paper writes them."""
    own = [natural[i] for i in range(len(y)) if y[i] == k]
    within = np.mean([distance(u, v) for u, v in combinations(own, 2)])
    into = [moved[i] for i in range(len(y)) if label[i] == k != y[i]]
    made = [moved[i] for i in range(len(y)) if y[i] == k]
    r = np.mean([distance(a, u) for a in into for u in own]) / within if into else np.nan
    return r, np.mean([distance(a, u) for a in made for u in own]) / within


@pytest.mark.parametrize("signed", [False, True])
def test_the_ratios_are_those_of_the_slow_loop(signed):
    given = example(signed)
    found = separation(*given)
    expected = np.array([slow(*given, k) for k in range(4)])
    np.testing.assert_allclose(found.r.each, expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(found.r_prime.each, expected[:, 1], rtol=1e-9)
    natural, y = given[:2]
    pairs = [[distance(u, v) for u, v in combinations(natural[y == k], 2)] for k in range(4)]
    assert found.within.value == pytest.approx(np.mean([np.mean(each) for each in pairs]))
    assert found.within.low < found.within.value < found.within.high
    assert found.r.skipped == 1
    assert found.r.known == [0, 1, 2]
    assert found.r.average.value == pytest.approx(np.nanmean(expected[:, 0]))
    assert found.r.over([0, 1]).value == pytest.approx(expected[:2, 0].mean())


def test_a_draw_is_the_ratio_of_the_drawn_images():
    natural, y, moved, label = example(False)
    found = separation(natural, y, moved, label, draws=3, seed=5)
    rng = np.random.default_rng(5)
    for draw in range(3):
        drawn = rng.integers(len(y), size=len(y))
        into, own = [i for i in drawn if label[i] == 0 != y[i]], [i for i in drawn if y[i] == 0]
        between = np.mean([distance(moved[i], natural[j]) for i in into for j in own])
        within = np.mean([distance(natural[i], natural[j]) for i in own for j in own if i != j])  # copies are no pair
        assert found.r.draws[draw, 0] == pytest.approx(between / within)


def test_the_interval_covers_the_ratio_of_more_samples():
    """Of 40 studies of 80 images the 95 % intervals hold the ratio of 4000 images nearly always."""

    def study(n, seed):
        rng = np.random.default_rng(seed)
        y = rng.integers(2, size=n)
        natural = np.abs(rng.normal(size=(n, 4)) + 3 * np.eye(4)[y])
        return natural, y, np.abs(natural + rng.normal(size=(n, 4))), 1 - y

    truth = separation(*study(4000, 99), draws=2).r_prime.average.value
    intervals = [separation(*study(80, seed), draws=200).r_prime.average for seed in range(40)]
    assert sum(one.low <= truth <= one.high for one in intervals) >= 33


def test_models_are_compared_on_the_classes_they_share():
    natural, y, moved, label = example(False)
    a = separation(natural, y, moved, label)
    b = separation(natural, y, moved, np.where(label == 0, y, label))
    difference = a.r.minus(b.r)
    assert difference.value == pytest.approx(a.r.over(b.r.known).value - b.r.average.value)
    assert a.r.minus(a.r).value == a.r.minus(a.r).low == a.r.minus(a.r).high == 0


def test_ten_thousand_samples_of_1024_dimensions_take_seconds_and_less_than_a_gibibyte():
    rng = np.random.default_rng(0)
    natural = np.abs(rng.normal(size=(10_000, 1024))).astype(np.float32)
    y = np.arange(10_000) % 10
    tracemalloc.start()
    before = time.process_time()
    separation(natural, y, natural[::-1], y[::-1])
    seconds, peak = time.process_time() - before, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 30  # 0.3 GiB when this was written
    assert seconds < 40  # of one core, 3 when this was written


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": [0, 0, 1, 2]}, "class 1 has one sample"),
        ({"natural": [[1.0, np.nan]] * 4}, "natural features hold NaN or infinite values in 4 of 4 rows"),
        ({"adversarial": [[1.0]] * 4}, "take both from the same layer"),
        ({"adversarial": [[1.0, 2.0]] * 3}, "4 natural and 3 adversarial"),
        ({"label": [0.5] * 4}, "integers of shape"),
        ({"natural": [[1.0, 1.0]] * 4}, "one direction"),
        ({"natural": [1.0] * 4}, "floats of shape"),
    ],
)
def test_bad_input(change, words):
    given = {"natural": [[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]], "y": [0, 0, 1, 1], "label": [1, 0, 1, 1]}
    given["adversarial"] = given["natural"]
    with pytest.raises(ValueError, match=words):
        separation(**given | change)


def test_intervals_of_samples_that_hardly_move_are_centered():
    """Pairs of a sample with itself dominate then: their share must be that of the samples in every draw."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    natural = np.abs(rng.normal(size=(60, 5)) + 2 * np.eye(5)[y])
    found = separation(natural, y, natural + 1e-3, y).r_prime
    assert found.average.value == pytest.approx(29 / 30, abs=1e-3)
    assert found.draws.mean() == pytest.approx(found.average.value, abs=1e-3)
    assert found.average.low < found.average.value < found.average.high
