"""The page of a sweep: the best trial, every trial against its number and against each key, and the full table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from holdfast.records.atomic import write_text
from holdfast.report.figures import COLORS, Plot, Trace, literal
from holdfast.report.html import embedded, filled
from holdfast.report.sweep import Axis, Sweep, Trial, csv_text, markdown, value_text, words

_OTHER, _BEST = COLORS[0], COLORS[1]


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write trials.csv, trials.md and sweep.html, each whole or not at all."""
    write_text(folder / "trials.csv", csv_text(sweep))
    write_text(folder / "trials.md", markdown(sweep))
    write_text(folder / "sweep.html", render_sweep(sweep))


def render_sweep(sweep: Sweep) -> str:
    """The page as HTML; it needs no network and escapes every name and value."""
    plots = sweep_plots(sweep)
    figures = [plot.figure | {"filename": f"{sweep.name} {plot.title}"} for plot in plots]
    values = {"sweep": sweep, "words": words(sweep), "plots": list(enumerate(plots)), "figures": embedded(figures)}
    return filled("sweep.html", values | {"short": value_text})


def sweep_plots(sweep: Sweep) -> list[Plot]:
    """Accuracy under attack against the number of the trial, then against each key; none where nothing ended well."""
    done = sorted((trial for trial in sweep.trials if trial.robust is not None), key=lambda trial: trial.number)
    if not done:
        return []
    return [_history(sweep, done), *(_slice(sweep, axis, done) for axis in sweep.axes)]


def _history(sweep: Sweep, done: Sequence[Trial]) -> Plot:
    best = list(accumulate((_percent(trial) for trial in done), max))
    numbers = [trial.number for trial in done]
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "x": numbers,
        "y": best,
        "line": {"color": _BEST, "width": 1.5, "shape": "hv"},
        "hoverinfo": "skip",
    }
    title = "Accuracy under attack against the trial"
    alt = f"Scatter chart of validation accuracy under attack for {len(done)} trials; the table below holds the numbers"
    return Plot(title, alt, _figure([line, _points(sweep, done, numbers)], {"title": {"text": "trial"}}))


def _slice(sweep: Sweep, axis: Axis, done: Sequence[Trial]) -> Plot:
    known = [trial for trial in done if axis.key in trial.values]
    values = [trial.values[axis.key] for trial in known]
    layout: dict[str, Any] = {"title": {"text": literal(axis.key)}}
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        x: list[Any] = list(values)
        layout |= {"type": "log"} if axis.log else {}
    else:
        x = [literal(value_text(value)) for value in values]
        order = [literal(value_text(value)) for value in axis.listed or ()]
        layout |= {"type": "category", "categoryorder": "array", "categoryarray": order}
    alt = f"Scatter chart of validation accuracy under attack against {axis.key}; the table below holds the numbers"
    return Plot(f"Accuracy under attack against {axis.key}", alt, _figure([_points(sweep, known, x)], layout))


def _points(sweep: Sweep, trials: Sequence[Trial], x: Sequence[Any]) -> Trace:
    chosen = [trial is sweep.best for trial in trials]
    up = [100 * trial.robust.high - _percent(trial) for trial in trials if trial.robust]
    down = [_percent(trial) - 100 * trial.robust.low for trial in trials if trial.robust]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "trials",
        "x": list(x),
        "y": [_percent(trial) for trial in trials],
        "text": [literal(_label(trial)) for trial in trials],
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 2},
        "marker": {
            "color": [_BEST if best else _OTHER for best in chosen],
            "symbol": ["star" if best else "circle" for best in chosen],
            "size": [14 if best else 8 for best in chosen],
        },
        "hovertemplate": "%{text}<br>%{y:.1f} % hold<extra></extra>",
    }


def _label(trial: Trial) -> str:
    values = ", ".join(f"{key} {value_text(value)}" for key, value in trial.values.items())
    return f"trial {trial.number}: {values}"


def _percent(trial: Trial) -> float:
    return 100 * trial.robust.value if trial.robust else 0.0


def _figure(traces: list[Trace], xaxis: dict[str, Any]) -> dict[str, Any]:
    layout = {
        "xaxis": xaxis,
        "yaxis": {"title": {"text": "holds (%)"}},
        "showlegend": False,
        "height": 340,
        "hovermode": "closest",
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
    }
    return {"data": traces, "layout": layout}
