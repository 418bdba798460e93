import numpy as np
import pytest
from scipy.spatial.distance import cosine

from holdfast.analysis.drift import drift

RNG = np.random.default_rng(0)
PATH, Y, MEANS = RNG.normal(size=(4, 9, 5)), RNG.integers(3, size=9), RNG.normal(size=(3, 5))


def test_distances_are_those_of_the_slow_loop():
    found = drift(PATH, Y, MEANS)
    for t in range(4):
        true = [cosine(PATH[t, i], MEANS[Y[i]]) for i in range(9)]
        false = [min(cosine(PATH[t, i], MEANS[k]) for k in range(3) if k != Y[i]) for i in range(9)]
        assert found.moved[t].value == pytest.approx(np.mean([cosine(PATH[t, i], PATH[0, i]) for i in range(9)]))
        assert found.true[t].value == pytest.approx(np.mean(true))
        assert found.false[t].value == pytest.approx(np.mean(false))
        assert found.home[t].value == pytest.approx(np.mean(np.array(true) <= false))
        assert found.true[t].low < found.true[t].value < found.true[t].high


def test_each_sample_is_nearest_to_one_class_mean():
    rng = np.random.default_rng(0)
    path, means, y = rng.normal(size=(3, 20, 4)), rng.normal(size=(5, 4)), np.arange(20) % 5
    found = drift(path, y, means)
    for step, row in zip(path, found.nearest, strict=True):
        for point, k in zip(step, row, strict=True):
            assert k == np.argmax([point @ m / np.linalg.norm(m) for m in means])
    ends = found.toward()
    assert {k: sum(numbers.values()) for k, numbers in ends.items()} == dict.fromkeys(range(5), 4)
    assert sum(numbers.get(k, 0) for k, numbers in ends.items()) == found.home[-1].successes


def test_the_crossing_is_the_first_step_nearer_to_a_false_class():
    path = [[[1.0, 0.0]], [[0.8, 0.2]], [[0.2, 0.8]]]
    assert drift(path, [0], [[1.0, 0.0], [0.0, 1.0]]).crossing == 2
    assert drift(path[:2], [0], [[1.0, 0.0], [0.0, 1.0]]).crossing is None


@pytest.mark.parametrize(
    ("path", "y", "means", "words"),
    [
        (PATH[0], Y, MEANS, "path has shape"),
        (PATH, Y, MEANS[:, :2], "same layer"),
        (PATH, Y + 1, MEANS, "means of 3 classes"),
        (PATH * np.nan, Y, MEANS, "NaN"),
    ],
)
def test_bad_input(path, y, means, words):
    with pytest.raises(ValueError, match=words):
        drift(path, y, means)
