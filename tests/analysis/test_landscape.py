import numpy as np
import pytest

from holdfast.analysis.landscape import landscape

AT = np.linspace(-1, 1, 5)


def test_a_plane_has_no_curvature_and_a_bowl_its_second_derivative():
    plane = (2 * AT[:, None] - AT)[None]
    bowl = (3 * AT[:, None] ** 2 + AT**2)[None]
    assert landscape(plane, AT).curvature.value == pytest.approx(0, abs=1e-12)
    assert landscape(plane, AT).rise.value == pytest.approx(3)
    assert landscape(bowl, AT).curvature.value == pytest.approx((6 + 2) / 2)
    assert landscape(bowl, AT).rise.value == pytest.approx(4)


def test_the_figure_is_the_mean_over_samples():
    losses = np.random.default_rng(0).normal(size=(20, 5, 5))
    found = landscape(losses, AT)
    each = [landscape(one[None], AT).curvature.value for one in losses]
    assert found.curvature.value == pytest.approx(np.mean(each))
    assert found.curvature.low < found.curvature.value < found.curvature.high
    np.testing.assert_allclose(found.mean, losses.mean(0))


@pytest.mark.parametrize(
    ("losses", "at", "words"),
    [
        (np.zeros((1, 5, 4)), AT, "losses have shape"),
        (np.zeros((1, 4, 4)), AT[:4], "odd number"),
        (np.zeros((1, 3, 3)), [0.0, 1.0, 3.0], "evenly spaced"),
        (np.full((1, 5, 5), np.nan), AT, "NaN"),
    ],
)
def test_bad_input(losses, at, words):
    with pytest.raises(ValueError, match=words):
        landscape(losses, at)
