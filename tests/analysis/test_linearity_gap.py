import numpy as np
import pytest

from holdfast.analysis.linearity import linearity


def test_statistics_of_every_eps_and_number_of_steps():
    gaps = np.random.default_rng(0).exponential(size=(3, 2, 50))
    found = linearity(gaps, [0.1, 0.2, 0.3], [2, 10])
    for i in range(3):
        for j in range(2):
            assert found.mean[i][j].value == pytest.approx(gaps[i, j].mean())
            assert found.mean[i][j].n == 50
            assert found.median[i, j] == np.median(gaps[i, j])
            assert found.upper[i, j] == np.quantile(gaps[i, j], 0.95)
            assert found.largest[i, j] == gaps[i, j].max()


@pytest.mark.parametrize(("gaps", "words"), [([[[1.0]]] * 2, "gaps have shape"), ([[[-1.0]]], "negative")])
def test_bad_input(gaps, words):
    with pytest.raises(ValueError, match=words):
        linearity(gaps, [0.1], [1])
