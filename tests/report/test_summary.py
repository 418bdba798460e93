import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.summary import (
    against,
    check_same_samples,
    compare,
    curve,
    curve_grid,
    worst,
)
from holdfast.statistics import Share, holm, mcnemar, spread


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts: tuple[int, int]) -> None:
    share, oracle = Share(*counts), binomtest(*counts).proportion_ci(method="wilson")
    assert share.low == pytest.approx(oracle.low, abs=1e-12)
    assert share.high == pytest.approx(oracle.high, abs=1e-12)
    assert share.low <= share.value <= share.high


def test_a_share_of_nothing_says_nothing() -> None:
    assert (Share(0, 0).low, Share(0, 0).high) == (0.0, 1.0)
    assert math.isnan(Share(0, 0).value)


@pytest.mark.parametrize("counts", [(-1, 3), (4, 3)])
def test_an_impossible_share_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a share"):
        Share(*counts)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 50))
def test_mcnemar_is_scipys_binomial_test(only_a: int, only_b: int, both: int) -> None:
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
def test_holm_by_its_definition(ps: list[float]) -> None:
    """Adjusted p of a hypothesis: the largest, over those at most as large, of its p times how many are not smaller."""
    adjusted = holm(ps)
    ranked = sorted(range(len(ps)), key=lambda i: ps[i])
    for place, i in enumerate(ranked):
        steps = [min(1.0, ps[ranked[j]] * (len(ps) - j)) for j in range(place + 1)]
        assert adjusted[i] == max(steps)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_spread_is_numpys(values: list[float]) -> None:
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert found.n == len(values)


def test_one_seed_has_no_deviation_and_none_no_mean() -> None:
    assert spread([0.5]).std is None
    with pytest.raises(ValueError, match="one per seed"):
        spread([])


def test_worst_case_is_per_sample_and_below_every_attack(study) -> None:
    for run in study.runs:
        least = worst(run.records, "linf", 0.3)
        alone = [against(run.records, name, 0.3).successes for name in ("PGD-40", "FGSM", "PGD-40 at 0.1")]
        assert least.successes <= min(alone)
        lost = ~run.records.right
        for name in ("PGD-40", "FGSM", "PGD-40 at 0.1"):
            lost |= run.records.columns[f"fooled:linf:{name}"]
        assert least.successes == (~lost).sum()


def test_models_on_other_samples_or_labels_are_not_compared(make_run, make_study) -> None:
    a, b, c = make_run("a", 0, n=20), make_run("b", 0, n=30), make_run("c", 0, n=20)
    moved = Records(dict(c.records.columns) | {"y": (c.records.columns["y"] + 1) % 10}, c.records.facts)
    with pytest.raises(ValueError, match="20 and 30 records were not measured on the same samples"):
        check_same_samples(a.records, b.records)
    with pytest.raises(ValueError, match="same labels"):
        check_same_samples(a.records, moved)
    with pytest.raises(ValueError, match="same samples"):
        compare(make_study([a, b]))


def test_comparisons_pair_seeds_and_count_each_side(study) -> None:
    pairs = compare(study)
    names = list(study.by_name())
    assert [(c.first, c.second, c.seed) for c in pairs] == [
        (a, b, s) for a, b in combinations(names, 2) for s in (0, 1)
    ]
    held = {(run.name, run.seed): run.records.held(0.3, "linf") for run in study.runs}
    for pair in pairs:
        a, b = held[pair.first, pair.seed], held[pair.second, pair.seed]
        assert pair.only_first - pair.only_second == a.sum() - b.sum()
        assert pair.p == mcnemar(a, b)
    assert [pair.adjusted for pair in pairs] == holm([pair.p for pair in pairs])
    assert all(pair.lead == -1 for pair in pairs if pair.first == "Plain")


def test_seeds_that_are_not_shared_are_not_paired(make_run, make_study) -> None:
    assert compare(make_study([make_run("a", 0, n=9), make_run("b", 1, n=9)])) == []


def test_equal_models_do_not_lead(make_run, make_study) -> None:
    run = make_run("a", 0, n=50)
    (pair,) = compare(make_study([run, replace(run, name="b")]))
    assert (pair.p, pair.lead) == (1.0, 0)


def test_curve_is_measured_where_attacked_and_falls(study) -> None:
    records = study.runs[2].records
    points = curve(records, "linf")
    assert [p.eps for p in points if p.measured] == [0.0, 0.1, 0.3]
    assert all(a.share.successes >= b.share.successes for a, b in pairwise(points))
    assert points[0].share == Share.of(records.right)
    assert points[-1].share == worst(records, "linf", 0.3)


def test_a_minimal_attack_measures_everywhere() -> None:
    distance = np.array([0.5, 1.0, np.nan, np.inf])
    columns = {
        "index": np.arange(4),
        "y": np.zeros(4, int),
        "label": np.zeros(4, int),
        "fooled:l2:m": np.array([True, True, False, False]),
        "distance:l2:m": distance,
        "label:l2:m": np.ones(4, int),
    }
    records = Records(columns, {"attacks": {"m": AttackFacts(norm="l2", eps=math.inf, minimal=True).facts()}})
    points = curve(records, "l2")
    assert all(point.measured for point in points)
    assert points[-1].eps == 1.0
    for point in points:
        assert point.share.successes == 4 - (distance <= point.eps).sum()


def test_the_grid_of_a_norm_nobody_attacked_is_zero(study) -> None:
    assert curve_grid([study.runs[0].records], "l1") == [0.0]
