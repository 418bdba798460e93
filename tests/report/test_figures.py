import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from holdfast.report.figures import (
    COLORS,
    STAGE_COLORS,
    accuracy_plot,
    cost_plots,
    literal,
    marks,
    mean_spend,
    training_plots,
)
from holdfast.report.summary import worst


def test_plotly_accepts_every_figure(study) -> None:
    plots = [accuracy_plot(study, "linf"), accuracy_plot(study, "l1"), *training_plots(study), *cost_plots(study)]
    for plot in plots:
        assert go.Figure(plot.figure).to_dict()["data"] is not None  # an unknown property raises
        assert plot.alt


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


def test_training_shows_validation_first_and_every_run(study) -> None:
    plots = training_plots(study)
    assert [plot.title for plot in plots] == ["clean", "robust", "loss"]
    assert all(len(plot.figure["data"]) == len(study.runs) for plot in plots)


def test_broken_log_values_are_skipped_and_long_logs_thinned(make_run, make_study) -> None:
    rows = [{"step": s, "epoch": 0, "split": "train", "loss": float(s), "note": "x", "flag": True} for s in range(1000)]
    rows[3]["loss"] = math.nan
    rows[4]["loss"] = None
    (plot,) = training_plots(make_study([replace(make_run("a", 0, n=5), metrics=rows)]))
    (trace,) = plot.figure["data"]
    assert 200 < len(trace["x"]) <= 300
    assert trace["x"] == trace["y"]
    assert all(math.isfinite(y) for y in trace["y"])


def test_no_log_no_figure(make_run, make_study) -> None:
    assert training_plots(make_study([replace(make_run("a", 0, n=5), metrics=[])])) == []


def test_cost_is_the_mean_over_seeds(study) -> None:
    runs = study.by_name()["AT"]
    assert mean_spend(runs, "PGD-40").seconds == 12.5
    assert mean_spend(runs, "nothing") is None
    seconds = cost_plots(study)[0].figure["data"]
    assert [trace["name"] for trace in seconds][:2] == ["training", "clean"]
    assert seconds[0]["x"] == [40.0, 40.0, 40.0]


def test_names_are_literal_in_plotly_texts(make_run, make_study) -> None:
    hostile = '<a href="javascript:alert(1)">x</a>'
    plot = accuracy_plot(make_study([make_run(hostile, 0, n=9)]), "linf")
    assert literal(hostile) in {trace["name"] for trace in plot.figure["data"]}
    assert "<" not in literal(hostile)


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#1b1f26"])
@pytest.mark.parametrize("color", COLORS + STAGE_COLORS)
def test_colors_stand_out_in_light_and_dark(color: str, background: str) -> None:
    low, high = sorted((_luminance(color), _luminance(background)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_forty_names_look_different() -> None:
    assert len(set(marks([str(i) for i in range(40)]).values())) == 40
