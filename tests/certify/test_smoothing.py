"""Smoothing against the closed form of a linear classifier, and its probability of failure over many repetitions."""

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from holdfast.certify.smoothing import Smoothing
from holdfast.rng import Rng


def halves(dim: int = 1) -> nn.Module:
    """Two classes, separated by the plane on which the first coordinate is zero."""
    model = nn.Linear(dim, 2)
    model.weight.data.zero_()
    model.weight.data[1, 0] = 1.0
    model.bias.data.zero_()
    return model


def at(distance: float, n: int = 1) -> Tensor:
    return torch.full((n, 1), distance)


def test_radii_of_a_linear_classifier_approach_its_distance(rng: Rng) -> None:
    """Under noise the distance to a plane is also the exact radius: p = Phi(distance / sigma)."""
    x = torch.tensor([[0.1], [0.3], [-0.2], [0.0]])
    found = Smoothing(model=halves(), sigma=0.25, n=20_000)(x, rng=rng)
    assert found.label.tolist() == [1, 1, 0, -1]
    assert (found.radius <= x.abs().squeeze(1)).all()
    torch.testing.assert_close(found.radius[:3], x.abs().squeeze(1)[:3].double(), rtol=0.1, atol=0.005)
    assert found.radius[3] == 0


@pytest.mark.parametrize("radii", [(), (0.05, 0.11, 0.15)])
def test_failures_are_at_most_as_frequent_as_stated(radii: tuple[float, ...], rng: Rng) -> None:
    """1,000 repetitions; a radius beyond the true one, 0.1, is a failure."""
    certify = Smoothing(model=halves(), sigma=0.25, n=400, alpha=0.1, radii=radii)
    found = certify(at(0.1, 1000), rng=rng)
    failures = int((found.radius > 0.1).sum())
    assert failures <= 100 + 4 * sqrt(90)  # four standard deviations of a binomial with probability alpha
    assert (found.radius > 0).sum() > 100, "a certifier that proves nothing cannot fail"
    if not radii:  # Clopper and Pearson's bound is nearly tight
        assert failures > 50


@pytest.mark.parametrize("radii", [(), (0.0, 0.001)])
def test_votes_that_chose_the_class_are_not_counted_again(radii: tuple[float, ...], rng: Rng) -> None:
    """Both classes are equally likely, so every radius is a failure; counting the 40 votes twice fails more often."""
    certify = Smoothing(model=halves(), selection=40, n=40, alpha=0.1, radii=radii)
    found = certify(at(0.0, 1000), rng=rng)
    assert (found.radius > 0).sum() <= 100 + 4 * sqrt(90)
    assert (found.label >= 0).sum() <= 100 + 4 * sqrt(90)


@pytest.mark.parametrize("radius", [0.1, 0.3])
def test_the_sequential_test_agrees_with_a_plain_loop(radius: float, rng: Rng) -> None:
    """Its oracle: Q as the product of the predictive probabilities (A + 1/2)/(N + 1) of Krichevsky and Trofimov."""
    certify, q = Smoothing(model=halves(), radii=(0.1,)), norm.cdf(radius / 0.25)
    for seed in range(20):
        votes = np.random.default_rng(seed).random(300) < 0.98
        total, a = 0.0, 0
        for i, vote in enumerate(votes):
            share = (a + 0.5) / (i + 1)
            total += np.log(share if vote else 1 - share) - np.log(q if vote else 1 - q)
            a += int(vote)
            expected = total >= np.log(1000) and a >= q * (i + 1)
            assert bool(certify._proved(np.array(a), i + 1, radius)) == expected


def test_the_sequential_test_stops_early_and_proves_the_same(rng: Rng) -> None:
    x = torch.tensor([[0.5], [0.45], [0.1], [0.0]])
    found, drawn = Smoothing(model=halves(), n=10_000, radii=(0.25, 0.05)).examine(x, rng=rng)
    assert found.radius.tolist() == [0.25, 0.25, 0.05, 0.0]
    assert (drawn[:2] < 1_000).all()
    assert (drawn <= 10_100).all()


def test_predict_abstains_at_the_boundary(rng: Rng) -> None:
    label = Smoothing(model=halves(), n=1000).predict(torch.tensor([[0.2], [-0.2], [0.0]]), rng=rng)
    assert label.tolist() == [1, 0, -1]


def test_outputs_that_are_not_finite_are_no_votes(rng: Rng) -> None:
    model = halves()
    model.bias.data.fill_(torch.nan)
    found = Smoothing(model=model)(at(0.3), rng=rng)
    assert found.label.tolist() == [-1]
    assert found.radius.tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sigma": 0.0}, "sigma is 0"),
        ({"sigma": inf}, "sigma is inf"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"alpha": 1.0}, "alpha is 1"),
        ({"n": 9}, "n is 9, with which nothing can be certified at alpha 0.001"),
        ({"n": 0}, "n is 0, with which nothing"),
        ({"selection": 0}, "selection is 0"),
        ({"radii": (-0.1,)}, "radii of zero or more"),
        ({"radii": (2.0,), "sigma": 0.25}, "radius 2 can never be certified"),
    ],
)
def test_wrong_settings_are_refused_before_samples_are_spent(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Smoothing(model=nn.Identity(), **settings)
