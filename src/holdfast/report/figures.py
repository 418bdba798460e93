"""Figures as plotly's plain dictionaries; colours that depend on light or dark are the page's business."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from holdfast.records.facts import Spend
from holdfast.report.study import Run, Study
from holdfast.report.summary import Point, curve, curve_grid
from holdfast.report.table import Cell, eps_text

Trace = dict[str, Any]

# each at least 3:1 against the light and the dark background of the page
COLORS = ("#2f7fd8", "#d9622b", "#149478", "#b355c7", "#c08a00", "#d64a73", "#6a78d1", "#5e8c31")
STAGE_COLORS = ("#7a8794", "#2f979e", "#a0743c", "#8d6fc0", "#b8607f", "#6f8f40", "#4f7fb0", "#bb6f5b")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_POINTS = 300


@dataclass(frozen=True)
class Plot:
    """A figure with the title above it and the sentence that stands for it where it cannot be seen."""

    title: str
    alt: str
    figure: dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """How one name looks in every figure."""

    color: str
    symbol: str


def marks(names: Sequence[str], colors: Sequence[str] = COLORS) -> dict[str, Mark]:
    """A colour and a symbol for each name, so that no line relies on colour alone."""
    return {
        name: Mark(colors[i % len(colors)], SYMBOLS[i % len(SYMBOLS)]) for i, name in enumerate(dict.fromkeys(names))
    }


def literal(name: str) -> str:
    """A name as plotly shows it literally: plotly reads a little HTML in every text."""
    return html.escape(name, quote=False)


def accuracy_plot(study: Study, norm: str) -> Plot:
    """The share that holds against eps; measured points filled and joined, upper bounds hollow and dotted."""
    looks = marks(list(study.by_name()))
    grid = curve_grid([run.records for run in study.runs], norm)
    traces: list[Trace] = []
    for name, runs in study.by_name().items():
        points = _mean_points([curve(run.records, norm, grid) for run in runs])
        pair = (_bounds(name, looks[name], points), _measured(name, looks[name], points))
        traces += [trace for trace in pair if trace["x"]]
    if any(trace["line"]["dash"] == "dot" for trace in traces):
        traces.append(_bound_legend())
    layout = {
        "xaxis": {"title": {"text": f"{literal(norm)} eps"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "holds (%)"}, "range": [-2, 102]},
        "legend": {"orientation": "h", "y": -0.2},
        "height": 440,
    }
    alt = f"Line chart of the percentage of samples that hold against {norm} eps up to {eps_text(grid[-1])}, for "
    return Plot(f"Accuracy against {norm} eps", alt + ", ".join(looks), _figure(traces, layout))


@dataclass(frozen=True)
class _Mean:
    eps: float
    cell: Cell
    measured: bool


def _mean_points(curves: Sequence[Sequence[Point]]) -> list[_Mean]:
    seeds = zip(*curves, strict=True)
    return [
        _Mean(points[0].eps, Cell(tuple(p.share for p in points)), all(p.measured for p in points))
        for points in seeds
        if all(p.share.n for p in points)
    ]


def _measured(name: str, mark: Mark, points: Sequence[_Mean]) -> Trace:
    shown = [point for point in points if point.measured]
    means = [100 * _mean(point.cell) for point in shown]
    up = [100 * point.cell.high - mean for point, mean in zip(shown, means, strict=True)]
    down = [mean - 100 * point.cell.low for point, mean in zip(shown, means, strict=True)]
    error = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}
    return _line(name, shown) | {
        "error_y": error,
        "line": {"color": mark.color, "dash": "solid", "width": 2},
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 8},
        "hovertemplate": "eps %{x:.4g}: %{y:.1f} %, measured<extra>%{fullData.name}</extra>",
    }


def _bounds(name: str, mark: Mark, points: Sequence[_Mean]) -> Trace:
    if all(point.measured for point in points):
        points = []
    return _line(name, points) | {
        "showlegend": False,
        # a step: what does not hold at one eps does not hold at any larger one
        "line": {"color": mark.color, "dash": "dot", "width": 1.2, "shape": "hv"},
        "marker": {
            "color": mark.color,
            "symbol": f"{mark.symbol}-open",
            "size": [0 if point.measured else 6 for point in points],
        },
        "hovertemplate": "eps %{x:.4g}: at most %{y:.1f} %<extra>%{fullData.name}</extra>",
    }


def _line(name: str, points: Sequence[_Mean]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": literal(name),
        "legendgroup": name,
        "cliponaxis": False,
        "x": [point.eps for point in points],
        "y": [100 * _mean(point.cell) for point in points],
    }


def _bound_legend() -> Trace:
    grey = "#7a8794"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "upper bound, not measured",
        "x": [None],
        "y": [None],
        "line": {"color": grey, "dash": "dot", "width": 1},
        "marker": {"color": grey, "symbol": "circle-open", "size": 6},
    }


def _mean(cell: Cell) -> float:
    return fmean(share.value for share in cell.known)


def training_plots(study: Study) -> list[Plot]:
    """One small figure per logged number, every run in it; numbers of the validation split come first."""
    looks = marks(list(study.by_name()))
    plots = []
    for scalar in _scalars(study):
        traces = [
            trace
            for name, runs in study.by_name().items()
            for which, run in enumerate(runs)
            for split in ("train", "valid")
            if (trace := _log_line(run, scalar, split, looks[name], DASHES[which % len(DASHES)]))["x"]
        ]
        layout = {"xaxis": {"title": {"text": "step"}}, "showlegend": False, "height": 280}
        plots.append(Plot(scalar, f"Line chart of {scalar} against the training step", _figure(traces, layout)))
    return plots


def _scalars(study: Study) -> list[str]:
    rows = [row for run in study.runs for row in run.metrics]
    rows.sort(key=lambda row: row.get("split") != "valid")
    found = dict.fromkeys(name for row in rows for name, value in row.items() if _number(value))
    return [name for name in found if name not in ("step", "epoch", "split")]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _log_line(run: Run, scalar: str, split: str, mark: Mark, dash: str) -> Trace:
    rows = [row for row in run.metrics if row.get("split") == split and _number(row.get(scalar)) and "step" in row]
    points = list(_thinned([(float(row["step"]), float(row[scalar])) for row in rows]))
    return {
        "type": "scatter",
        "mode": "lines+markers" if split == "valid" else "lines",
        "name": f"{literal(run.name)}, seed {run.seed}, {split}",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "opacity": 1 if split == "valid" else 0.75,
        "line": {"color": mark.color, "dash": dash, "width": 2 if split == "valid" else 1.2},
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 5},
        "hovertemplate": "step %{x:.0f}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _thinned(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Means over equal stretches once there are more points than a screen can show."""
    stretch = -(-len(points) // _MOST_POINTS)
    for start in range(0, len(points), max(1, stretch)):
        part = points[start : start + stretch]
        yield fmean(x for x, _ in part), fmean(y for _, y in part)


def stage_marks(study: Study) -> dict[str, Mark]:
    """The stages that cost anything, in the order they were run, each with its colour."""
    return marks([stage for run in study.runs for stage in run.records.spend()], STAGE_COLORS)


def mean_spend(runs: Sequence[Run], stage: str) -> Spend | None:
    """The mean cost of a stage over the seeds that ran it."""
    found = [spend[stage] for run in runs if stage in (spend := run.records.spend())]
    if not found:
        return None
    return Spend(
        fmean(s.seconds for s in found),
        round(fmean(s.forwards for s in found)),
        round(fmean(s.backwards for s in found)),
    )


def cost_plots(study: Study) -> list[Plot]:
    """Seconds, forward and backward passes per name, stacked by stage, means over seeds."""
    titles = {"seconds": "Seconds", "forwards": "Forward passes (samples)", "backwards": "Backward passes (samples)"}
    plots = []
    for what, title in titles.items():
        traces = [_bar(study, stage, mark.color, what) for stage, mark in stage_marks(study).items()]
        layout = {
            "barmode": "stack",
            "showlegend": False,
            "height": 120 + 34 * len(study.by_name()),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "xaxis": {"rangemode": "tozero"},
            "margin": {"l": 56, "r": 16, "t": 16, "b": 32},
        }
        alt = f"Stacked bar chart of {title.lower()} for each method; the table below holds the numbers"
        plots.append(Plot(title, alt, _figure(traces, layout)))
    return plots


def _bar(study: Study, stage: str, color: str, what: str) -> Trace:
    spends = [mean_spend(runs, stage) or Spend() for runs in study.by_name().values()]
    return {
        "type": "bar",
        "orientation": "h",
        "name": literal(stage),
        "y": [literal(name) for name in study.by_name()],
        "x": [getattr(spend, what) for spend in spends],
        "marker": {"color": color},
        "hovertemplate": "%{y}: %{x:,.4~g}<extra>%{fullData.name}</extra>",
    }


def _figure(traces: list[Trace], layout: dict[str, Any]) -> dict[str, Any]:
    margin = {"l": 56, "r": 16, "t": 16, "b": 48}
    return {"data": traces, "layout": {"margin": margin, "hovermode": "closest", **layout}}
