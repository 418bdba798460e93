import numpy as np
import pytest

from holdfast.analysis.strength import strength


def test_accuracy_is_the_share_not_fooled_by_each_strength():
    rng = np.random.default_rng(0)
    fooled_at, y = rng.integers(20, size=60).astype(float), rng.integers(4, size=60)
    fooled_at[::7] = np.inf
    found = strength(fooled_at, y, [0, 5, 10, 40])
    for t, level in enumerate([0, 5, 10, 40]):
        held = [not f <= level for f in fooled_at]
        assert found.accuracy[t].value == np.mean(held)
        for k in range(4):
            own = [h for h, c in zip(held, y, strict=True) if c == k]
            assert found.per_class[k][t].successes == sum(own)
            assert found.per_class[k][t].n == len(own)
    assert found.per_class[found.weakest][-1].value == min(shares[-1].value for shares in found.per_class.values())


@pytest.mark.parametrize(
    ("fooled_at", "at", "words"),
    [([[1.0]], [1], "one number per sample"), ([np.nan], [1], "one number"), ([1.0], [2, 1], "increasing")],
)
def test_bad_input(fooled_at, at, words):
    with pytest.raises(ValueError, match=words):
        strength(fooled_at, [0], at)
