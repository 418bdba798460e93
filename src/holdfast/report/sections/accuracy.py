"""Robust accuracy against eps, one plot for each norm."""

from collections.abc import Sequence

from holdfast.report.elements.figures import Mark, Plot, Trace, curve_figure, error_bars, marks, scatter
from holdfast.report.elements.format import eps_text
from holdfast.report.page import Section
from holdfast.report.study import Study
from holdfast.report.summary import Point, curve, curve_grid

ORDER = 30

_NOTE = (
    "Filled markers are measured: an attack was run at exactly this eps, or an attack that minimizes the perturbation.",
    "Hollow markers on dotted steps are upper bounds from attacks at other eps: the true value can only be lower.",
    "Bars span the 95 % intervals; lines between measured points only guide the eye.",
)


def section(study: Study) -> Section | None:
    """A plot for each norm that was attacked at several eps; two points are no curve, and the tables hold them."""
    plots = [accuracy_plot(study, norm) for norm in study.norms() if _several(study, norm)]
    title = "Robust accuracy against eps"
    return Section(id="accuracy", title=title, sentences=_NOTE, plots=plots) if plots else None


def _several(study: Study, norm: str) -> bool:
    attacks = [attack for attack in study.attacks().values() if attack.norm == norm]
    return len({attack.eps for attack in attacks}) > 1 or any(attack.minimal for attack in attacks)


def accuracy_plot(study: Study, norm: str) -> Plot:
    """Robust accuracy against eps; measured points are filled and joined, upper bounds are hollow and dotted."""
    groups, looks = study.attacked(), marks(study.titles)
    grid = curve_grid([run.records for runs in groups.values() for run in runs], norm)
    traces: list[Trace] = []
    for name, runs in groups.items():
        points = [point for point in curve([run.records for run in runs], norm, grid) if point.cell.known]
        pair = (_bounds(name, looks[name], points), _measured(name, looks[name], points))
        traces += [trace for trace in pair if trace["x"]]
    if any(trace["line"]["dash"] == "dot" for trace in traces):
        traces.append(_bound_legend())
    alt = f"Line chart of robust accuracy in percent against {norm} eps up to {eps_text(grid[-1])}, for "
    drawn = curve_figure(traces, f"{norm} eps", "robust accuracy (%)")
    caption = "Good is a line that starts high and falls late; where it has reached 0 the attacks are strong enough."
    return Plot(f"Robust accuracy against {norm} eps", alt + ", ".join(groups), drawn, wide=True, caption=caption)


def _measured(name: str, mark: Mark, points: Sequence[Point]) -> Trace:
    shown = [point for point in points if point.measured]
    return _line(name, shown) | {
        "error_y": error_bars([point.cell for point in shown]),
        "line": {"color": mark.color, "dash": "solid", "width": 2},
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 8},
        "hovertemplate": "eps %{x:.4g}: %{y:.1f} %, measured<extra>%{fullData.name}</extra>",
    }


def _bounds(name: str, mark: Mark, points: Sequence[Point]) -> Trace:
    if all(point.measured for point in points):
        points = []
    return _line(name, points) | {
        "showlegend": False,
        # a step: a sample with an adversarial example at one eps has it at every larger one
        "line": {"color": mark.color, "dash": "dot", "width": 1.2, "shape": "hv"},
        "marker": {
            "color": mark.color,
            "symbol": f"{mark.symbol}-open",
            "size": [0 if point.measured else 6 for point in points],
        },
        "hovertemplate": "eps %{x:.4g}: at most %{y:.1f} %<extra>%{fullData.name}</extra>",
    }


def _line(name: str, points: Sequence[Point]) -> Trace:
    x, y = [point.eps for point in points], [100 * point.cell.mean for point in points]
    return scatter(name, x, y) | {"legendgroup": name, "cliponaxis": False}


def _bound_legend() -> Trace:
    gray = "#7a8794"
    return scatter("upper bound, not measured", [None], [None]) | {
        "line": {"color": gray, "dash": "dot", "width": 1},
        "marker": {"color": gray, "symbol": "circle-open", "size": 6},
    }
