"""Robust accuracy, comparisons and curves computed from records."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.study import check_same_samples
from holdfast.report.summary import Point, against, compare, curve, curve_grid, worst
from holdfast.statistics import Share, holm, mcnemar


def test_worst_case_is_per_sample_and_below_every_attack(study) -> None:
    for run in study.runs:
        least = worst(run.records, "linf", 0.3)
        alone = [against(run.records, name, 0.3).successes for name in ("PGD-40", "FGSM", "PGD-40 at 0.1")]
        assert least.successes <= min(alone)
        lost = ~run.records.correct
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
    names = list(study.attacked())
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


def test_equal_models_do_not_differ(make_run, make_study) -> None:
    run = make_run("a", 0, n=50)
    (pair,) = compare(make_study([run, replace(run, name="b")]))
    assert (pair.p, pair.lead) == (1.0, 0)


def share_of(point: Point) -> Share:
    """The share of the only seed."""
    (share,) = point.cell.shares
    return share


def test_the_curve_is_measured_at_attacked_eps_and_decreases(study) -> None:
    records = study.runs[2].records
    points = curve([records], "linf", curve_grid([records], "linf"))
    assert [p.eps for p in points if p.measured] == [0.0, 0.1, 0.3]
    assert all(share_of(a).successes >= share_of(b).successes for a, b in pairwise(points))
    assert share_of(points[0]) == Share.of(records.correct)
    assert share_of(points[-1]) == worst(records, "linf", 0.3)


def test_a_minimal_norm_attack_measures_every_eps() -> None:
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
    points = curve([records], "l2", curve_grid([records], "l2"))
    assert all(point.measured for point in points)
    assert points[-1].eps == 1.0
    for point in points:
        assert share_of(point).successes == 4 - (distance <= point.eps).sum()


def test_the_grid_of_a_norm_without_attacks_is_zero(study) -> None:
    assert curve_grid([study.runs[0].records], "l1") == [0.0]


def test_a_point_is_measured_only_if_every_seed_was_attacked_there(make_run, without) -> None:
    full = make_run("a", 0, n=20).records
    fewer = without(make_run("a", 1, n=20), "PGD-40 at 0.1").records
    (at_lower, at_stated) = curve([full, fewer], "linf", [0.1, 0.3])
    assert not at_lower.measured
    assert at_stated.measured
    assert at_stated.cell.shares == (worst(full, "linf", 0.3), worst(fewer, "linf", 0.3))
