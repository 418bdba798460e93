"""Certified and empirical error: values, order, and one table and plot for each norm and group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.records import Records
from holdfast.report.opening import answer
from holdfast.report.page import render
from holdfast.report.sections.certificates import section
from holdfast.report.study import Run, Study
from holdfast.report.study_page import study_page
from holdfast.report.summary import bounds, certified_error, empirical_error
from holdfast.report.text import text_table

L2 = "l2:neighbors"


def records(y, label, radius, upper, norm="l2", warnings=()):
    columns = {"index": np.arange(len(y)), "y": np.array(y), "label": np.array(label)}
    columns |= {f"radius:{norm}:neighbors": np.array(radius, float), f"upper:{norm}:neighbors": np.array(upper, float)}
    facts = {"training": {"seconds": 1.0, "warnings": list(warnings)}, "certifier": {"seconds": 2.0}}
    return Records(columns, facts)


def run(name, seed, group="K = 1", **changes):
    given = {"y": [0, 1, 0, 1], "label": [0, 1, 0, 0], "radius": [0.0, 0.5, 1.0, 3.0], "upper": [0.1, 0.6, np.inf, 4.0]}
    return Run(name=name, method="plain", seed=seed, group=group, records=records(**given | changes))


def study(*runs, radii=(0.5, 2.0)):
    return Study(name="s", title="A <study>", description="d", runs=runs, radii=radii, recipe="r")


def test_error_counts_misclassified_samples_and_samples_within_the_radius():
    found = run("A", 0).records
    assert [certified_error(found, L2, r).successes for r in (0, 0.05, 0.5, 0.99, 1.0)] == [1, 2, 3, 3, 4]
    assert [empirical_error(found, L2, r).successes for r in (0, 0.05, 0.1, 0.6, 9.0)] == [1, 1, 2, 3, 3]


def test_empirical_error_counts_the_examples_of_attacks_in_the_same_norm():
    found = run("A", 0, upper=[np.inf] * 4).records
    columns, attacks = dict(found.columns), {}
    for norm, fooled in (("l2", [True, False, True, True]), ("linf", [True] * 4)):
        label = np.where(fooled, 1 - found.columns["y"], found.columns["y"])
        columns |= {f"fooled:{norm}:{norm} attack": np.array(fooled), f"label:{norm}:{norm} attack": label}
        columns[f"distance:{norm}:{norm} attack"] = np.array([0.2, 0.3, 1.5 + 1e-7, 0.0])  # one beyond eps by rounding
        attacks[f"{norm} attack"] = {"norm": norm, "eps": 1.5}
    both = Records(columns, {**found.facts, "attacks": attacks})
    assert [empirical_error(both, L2, r).successes for r in (0, 0.1, 0.2, 0.3, 1.5)] == [1, 1, 2, 2, 3]
    assert bounds(both, L2)[1].tolist() == [0.2, np.inf, 1.5, 0.0]


def test_without_attacks_in_the_norm_there_is_no_empirical_error():
    found = section(study(run("A", 0, upper=[np.inf] * 4)))
    assert found is not None
    assert not any("Empirical" in column.title for column in found.tables[0].columns)
    assert "K = 1, l2 radii of neighbors: no attack in l2 was run, so only the certified error is known." in (
        found.sentences
    )


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8), st.floats(0, 6))
def test_empirical_error_never_exceeds_certified_and_both_increase(rows, radius):
    label = [int(wrong) for wrong, _, _ in rows]
    low = [low for _, low, _ in rows]
    found = records([0] * len(rows), label, low, [low + more for _, low, more in rows])
    assert empirical_error(found, L2, radius).successes <= certified_error(found, L2, radius).successes
    assert certified_error(found, L2, radius).successes <= certified_error(found, L2, radius + 0.5).successes
    by_hand = sum(bool(wrong) or (radius > 0 and bound <= radius) for wrong, bound, _ in rows)
    assert certified_error(found, L2, radius).successes == by_hand


def test_radii_of_two_norms_or_groups_never_share_a_table_or_a_plot():
    found = section(study(run("A", 0), run("B", 0, norm="linf"), run("A", 0, group="K = 11")))
    titles = ["K = 1, l2 radii of neighbors", "K = 1, linf radii of neighbors", "K = 11, l2 radii of neighbors"]
    assert [table.caption for table in found.tables] == titles
    assert [[row.name for row in table.rows] for table in found.tables] == [["A"], ["B"], ["A"]]
    assert [plot.title.partition(":")[0] for plot in found.plots] == titles
    for plot, norm in zip(found.plots, ("l2", "linf", "l2"), strict=True):
        assert len(plot.figure["data"]) == 3
        assert plot.figure["layout"]["xaxis"]["title"]["text"] == f"{norm} radius"


def test_other_samples_and_no_runs_are_refused():
    with pytest.raises(ValueError, match="not measured on the same labels"):
        study(run("A", 0), run("B", 0, y=[1, 1, 0, 1]))
    with pytest.raises(ValueError, match="no runs to report"):
        study()
    with pytest.raises(ValueError, match="lack the column 'radius:l2:neighbors'"):
        bounds(Records({"index": np.arange(1), "y": np.arange(1), "label": np.arange(1)}), L2)


def test_curves_are_staircases_of_the_means_over_seeds():
    runs = [run("A", 0), run("A", 1, radius=[0.05, 0.5, 1.0, 3.0])]
    (plot,) = section(study(*runs, radii=(0.5,))).plots
    proved, shown = plot.figure["data"][:2]
    assert proved["line"]["shape"] == "hv"
    for x, y in zip(proved["x"], proved["y"], strict=True):
        assert y == pytest.approx(100 * np.mean([certified_error(one.records, L2, x).value for one in runs]))
    assert np.isfinite(proved["x"]).all()
    assert (np.diff(proved["y"]) >= 0).all()
    assert (np.array(shown["y"]) <= np.array(proved["y"])).all()
    assert "l2 radius" in plot.figure["layout"]["xaxis"]["title"]["text"]


def test_page_and_text_show_the_numbers_and_escape_names():
    page = render(study_page(study(run("<A>", 0, warnings=["still falls"]), run("<A>", 1), run("B", 0))))
    assert "A &lt;study&gt;" in page
    assert "<A>" not in page.partition('<script type="application/json"')[0]
    assert "Certified 0.5" in page
    assert "still falls: &lt;A&gt; (seed 0)" in page
    text = text_table(study(run("A", 0, warnings=["still falls"]), run("A", 1)))
    assert "75.0 ± 0.0" in text
    assert "Warning: still falls: A (seed 0)." in text


def test_one_page_can_hold_attacks_and_certificates(make_run, make_study):
    mixed = replace(make_study([make_run("net", 0, n=20), run("A", 0)]), radii=(0.5,))
    page = study_page(mixed)
    assert {"results", "accuracy", "certificates"} <= {section.id for section in page.sections}
    results, certificates = (next(s for s in page.sections if s.id == name) for name in ("results", "certificates"))
    assert [row.name for row in results.tables[0].rows] == ["net"]
    assert [row.name for row in certificates.tables[0].rows] == ["A"]
    assert {"Threat": mixed.threat, "Certified radii": "l2", "Samples": "4 to 20"}.items() <= page.facts.items()
    assert render(page)


def test_the_answer_says_what_is_proved_if_not_the_classifier_and_how_likely_a_radius_is_wrong():
    one = run("A", 0)
    facts = {"certificates": {"neighbors": {"certifies": "the smoothed network", "alpha": 0.001}}}
    smoothed = replace(one, records=Records(one.records.columns, facts))
    where, of = "Correct and proved within l2 radius 2 with K = 1", "of the smoothed network; each radius is wrong with"
    assert any(f"{where}: " in sentence for sentence in answer(study(one)))
    assert any(f"{where} ({of} a probability of at most 0.001): " in said for said in answer(study(smoothed)))


def test_an_empty_set_of_certificates_gives_a_page():
    assert "Certificates" in render(study_page(study(run("A", 0, y=[], label=[], radius=[], upper=[]))))
