"""Figures are valid for plotly, escape names, and are readable in light and dark."""

import plotly.graph_objects as go
import pytest

from holdfast.report.elements.figures import colors, literal, marks, palette
from holdfast.report.sections.accuracy import accuracy_plot
from holdfast.report.study_page import study_page


def test_plotly_accepts_every_figure(study) -> None:
    plots = [*study_page(study).plots, accuracy_plot(study, "l1")]
    assert len(plots) == 1 + 1 + 1 + 3 + 3 + 1
    for plot in plots:
        assert go.Figure(plot.figure).to_dict()["data"] is not None  # an unknown property raises
        assert plot.alt


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
@pytest.mark.parametrize("color", palette(40))
def test_colors_stand_out_in_light_and_dark(color: str, background: str) -> None:
    low, high = sorted((_luminance(color), _luminance(background)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_forty_names_look_different() -> None:
    names = [str(i) for i in range(40)]
    assert len(set(marks(names).values())) == len(set(colors(names).values())) == 40
