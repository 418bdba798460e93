"""Intervals and tests against scipy, numpy and their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, bootstrap

from holdfast.statistics import Estimate, Share, clopper_pearson, holm, mcnemar, resampled, spread


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_equals_scipys(counts: tuple[int, int]) -> None:
    share, oracle = Share(*counts), binomtest(*counts).proportion_ci(method="wilson")
    assert share.low == pytest.approx(oracle.low, abs=1e-12)
    assert share.high == pytest.approx(oracle.high, abs=1e-12)
    assert share.low <= share.value <= share.high


def test_the_interval_of_no_samples_is_zero_to_one() -> None:
    assert (Share(0, 0).low, Share(0, 0).high) == (0.0, 1.0)
    assert math.isnan(Share(0, 0).value)


@pytest.mark.parametrize("counts", [(-1, 3), (4, 3)])
def test_an_impossible_share_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a share"):
        Share(*counts)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 50))
def test_mcnemar_equals_scipys_binomial_test(only_a: int, only_b: int, both: int) -> None:
    a = np.array([True] * only_a + [False] * only_b + [True] * both + [False] * 7)
    b = np.array([False] * only_a + [True] * only_b + [True] * both + [False] * 7)
    n = only_a + only_b
    oracle = binomtest(only_a, n).pvalue if n else 1.0
    assert mcnemar(a, b) == pytest.approx(oracle, rel=1e-9)
    assert mcnemar(a, b) == mcnemar(b, a)


def test_mcnemar_of_ten_thousand_discordant_samples_does_not_overflow() -> None:
    a = np.arange(10_000) < 4900
    assert mcnemar(a, ~a) == pytest.approx(binomtest(4900, 10_000).pvalue, rel=1e-9)
    assert mcnemar(np.ones(10_000, bool), np.zeros(10_000, bool)) == 0.0


def test_mcnemar_refuses_unpaired_samples() -> None:
    with pytest.raises(ValueError, match="one value per sample"):
        mcnemar(np.ones(3, bool), np.ones(4, bool))


@given(st.lists(st.floats(0, 1), max_size=7))
def test_holm_follows_its_definition(ps: list[float]) -> None:
    """Adjusted p of a hypothesis: the largest, over those at most as large, of its p times how many are not smaller."""
    adjusted = holm(ps)
    ranked = sorted(range(len(ps)), key=lambda i: ps[i])
    for place, i in enumerate(ranked):
        steps = [min(1.0, ps[ranked[j]] * (len(ps) - j)) for j in range(place + 1)]
        assert adjusted[i] == max(steps)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_spread_equals_numpys(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert found.n == len(values)


def test_one_seed_has_no_deviation_and_no_seeds_are_refused() -> None:
    assert spread([0.5]).std is None
    with pytest.raises(ValueError, match="one per seed"):
        spread([])


@pytest.mark.parametrize(("successes", "n"), [(0, 100), (3, 100), (0, 1), (7, 9), (299, 300)])
def test_clopper_pearson_is_where_so_few_successes_become_unlikely(successes: int, n: int) -> None:
    bound = clopper_pearson(successes, n)
    assert binom.cdf(successes, n, bound) == pytest.approx(0.05)
    assert clopper_pearson(successes, n, 0.99) > bound


def test_clopper_pearson_without_a_failure_or_a_trial_is_one() -> None:
    assert clopper_pearson(5, 5) == clopper_pearson(0, 0) == 1.0
    with pytest.raises(ValueError, match="6 of 5 is not a share"):
        clopper_pearson(6, 5)


def test_bootstrap_of_a_mean_agrees_with_scipy():
    values = np.random.default_rng(0).exponential(size=200)
    found = Estimate.mean(values, draws=4000)
    theirs = bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1)
    assert found.value == pytest.approx(values.mean())
    assert found.n == 200
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.02)


def test_an_estimate_without_samples_or_finite_draws_is_nan():
    assert np.isnan(Estimate.mean(np.zeros(0)).value)
    assert np.isnan(Estimate.of(1.0, np.array([np.nan]), 1).low)


def test_resampled_counts_are_repeatable_and_add_up():
    counts = resampled(7, 5, seed=3)
    assert (counts.sum(1) == 7).all()
    assert (counts == resampled(7, 5, seed=3)).all()
