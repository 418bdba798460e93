"""Robust error from radii: by loops, in order, of one norm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.records import Records
from holdfast.report.certified import (
    Certified,
    CertifiedStudy,
    bounds_of,
    certified_error,
    empirical_error,
    text_certified,
)
from holdfast.report.certified_page import curves, render_certified
from holdfast.report.study import Run


def records(y, label, radius, upper, norm="l2", said=()):
    columns = {"index": np.arange(len(y)), "y": np.array(y), "label": np.array(label)}
    columns |= {f"radius:{norm}:neighbors": np.array(radius, float), f"upper:{norm}:neighbors": np.array(upper, float)}
    facts = {"training": {"seconds": 1.0, "warnings": list(said)}, "certifier": {"seconds": 2.0}}
    return Records(columns, facts)


def run(name, seed, **changes):
    given = {"y": [0, 1, 0, 1], "label": [0, 1, 0, 0], "radius": [0.0, 0.5, 1.0, 3.0], "upper": [0.1, 0.6, np.inf, 4.0]}
    return Run(name=name, method="plain", seed=seed, records=records(**given | changes))


def study(*runs, radii=(0.5, 2.0)):
    return CertifiedStudy(
        name="s",
        title="A <study>",
        description="d",
        classifiers=[Certified(title="K = 1", runs=runs)],
        radii=radii,
        recipe="r",
    )


def test_error_counts_the_misclassified_and_those_within_reach():
    found = run("A", 0).records
    assert [certified_error(found, r).successes for r in (0, 0.05, 0.5, 0.99, 1.0)] == [1, 2, 3, 3, 4]
    assert [empirical_error(found, r).successes for r in (0, 0.05, 0.1, 0.6, 9.0)] == [1, 1, 2, 3, 3]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8), st.floats(0, 6))
def test_empirical_error_never_exceeds_certified_and_both_rise(rows, radius):
    label = [int(wrong) for wrong, _, _ in rows]
    low = [low for _, low, _ in rows]
    found = records([0] * len(rows), label, low, [low + more for _, low, more in rows])
    assert empirical_error(found, radius).successes <= certified_error(found, radius).successes
    assert certified_error(found, radius).successes <= certified_error(found, radius + 0.5).successes
    by_hand = sum(bool(wrong) or (radius > 0 and bound <= radius) for wrong, bound, _ in rows)
    assert certified_error(found, radius).successes == by_hand


def test_radii_of_two_norms_never_share_a_page():
    with pytest.raises(ValueError, match="l2 and linf radii cannot stand beside each other"):
        study(run("A", 0), run("B", 0, norm="linf"))


def test_other_samples_and_no_runs_are_refused():
    with pytest.raises(ValueError, match="not measured on the same labels"):
        study(run("A", 0), run("B", 0, y=[1, 1, 0, 1]))
    with pytest.raises(ValueError, match="no certificates to report"):
        study()
    with pytest.raises(ValueError, match="0 columns of radii"):
        bounds_of(Records({"index": np.arange(1), "y": np.arange(1), "label": np.arange(1)}))


def test_curves_are_staircases_of_the_means_over_seeds():
    runs = [run("A", 0), run("A", 1, radius=[0.05, 0.5, 1.0, 3.0])]
    plot = curves(Certified(title="K = 1", runs=runs), "l2", (0.5,))
    proved, shown = plot.figure["data"][:2]
    assert proved["line"]["shape"] == "hv"
    for x, y in zip(proved["x"], proved["y"], strict=True):
        assert y == pytest.approx(100 * np.mean([certified_error(one.records, x).value for one in runs]))
    assert np.isfinite(proved["x"]).all()
    assert (np.diff(proved["y"]) >= 0).all()
    assert (np.array(shown["y"]) <= np.array(proved["y"])).all()
    assert "l2 radius" in plot.figure["layout"]["xaxis"]["title"]["text"]


def test_the_page_holds_every_number_and_escapes_names():
    page = render_certified(study(run("<A>", 0, said=["still falls"]), run("<A>", 1), run("B", 0)))
    assert "A &lt;study&gt;" in page
    assert "<A>" not in page.partition('<script type="application/json"')[0]
    assert "Certified 0.5" in page
    assert "still falls: &lt;A&gt; (seed 0)" in page
    told = text_certified(study(run("A", 0, said=["still falls"]), run("A", 1)))
    assert "75.0 ± 0.0" in told
    assert "Note: still falls: A (seed 0)." in told
