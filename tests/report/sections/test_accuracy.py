"""Measured points and upper bounds look different."""

import pytest

from holdfast.report.sections.accuracy import accuracy_plot
from holdfast.report.summary import worst


def traces_of(plot, name: str) -> dict[str, dict]:
    return {trace["line"]["dash"]: trace for trace in plot.figure["data"] if trace["name"] == name}


def test_measured_points_are_filled_and_bounds_hollow(study) -> None:
    traces = traces_of(accuracy_plot(study, "linf"), "AT")
    solid, dotted = traces["solid"], traces["dot"]
    assert solid["x"] == [0.0, 0.1, 0.3]
    mean = sum(worst(run.records, "linf", 0.3).value for run in study.runs if run.name == "AT") / 2
    assert solid["y"][-1] == pytest.approx(100 * mean)
    assert not solid["marker"]["symbol"].endswith("-open")
    assert dotted["marker"]["symbol"].endswith("-open")
    hollow = [x for x, size in zip(dotted["x"], dotted["marker"]["size"], strict=True) if size]
    assert not set(hollow) & set(solid["x"])
    assert len(hollow) > 10


def test_bounds_are_explained_only_where_there_are_some(study) -> None:
    legend = "upper bound, not measured"
    assert traces_of(accuracy_plot(study, "linf"), legend)
    assert not traces_of(accuracy_plot(study, "l1"), legend)
