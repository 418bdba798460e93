"""The page of certificates: tables at chosen radii and full curves, one figure for each classifier, all of one norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from holdfast.records.atomic import write_text
from holdfast.records.records import Records
from holdfast.report.certified import Certified, CertifiedStudy, certified_error, empirical_error, spread_mean
from holdfast.report.figures import Mark, Plot, Trace, literal, marks
from holdfast.report.html import embedded, filled
from holdfast.report.study import Run
from holdfast.report.table import Cell
from holdfast.statistics import Share

Error = Callable[[Records, float], Share]


def write_certified(path: Path, study: CertifiedStudy) -> None:
    """Write the page as one self-contained file that opens from disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render_certified(study))


def render_certified(study: CertifiedStudy) -> str:
    """The page as HTML; it needs no network and escapes every name."""
    plots = [curves(one, study.norm, study.radii) for one in study.classifiers]
    figures = [plot.figure | {"filename": f"{study.name} {plot.title}"} for plot in plots]
    names = [name for one in study.classifiers for name in one.by_name()]
    values = {
        "study": study,
        "words": study.words(),
        "notes": study.notes(),
        "sections": [
            (number, one, one.table(study.radii), plot)
            for number, (one, plot) in enumerate(zip(study.classifiers, plots, strict=True))
        ],
        "marks": marks(names),
        "seconds": _seconds(study),
        "figures": embedded(figures),
    }
    return filled("certified.html", values)


def curves(classifier: Certified, norm: str, radii: Sequence[float]) -> Plot:
    """Robust error over all radii: certified solid, empirical dotted; the truth lies between the two."""
    looks, grid = marks(list(classifier.by_name())), classifier.grid()
    traces = []
    for name, runs in classifier.by_name().items():
        traces.append(_line(f"{name}, certified", runs, grid, certified_error, looks[name], "solid"))
        traces.append(_line(f"{name}, empirical", runs, grid, empirical_error, looks[name], "dot"))
        traces.append(_bars(name, runs, radii, looks[name]))
    layout = {
        "xaxis": {"title": {"text": f"{literal(norm)} radius"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "robust error (%)"}, "range": [-2, 102]},
        "legend": {"orientation": "h", "y": -0.2},
        "height": 460,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "hovermode": "closest",
    }
    alt = f"Line chart of certified and empirical robust error against the {norm} radius for {', '.join(looks)}"
    return Plot(f"{classifier.title}: robust error against the {norm} radius", alt, {"data": traces, "layout": layout})


def _line(title: str, runs: Sequence[Run], grid: Sequence[float], error: Error, mark: Mark, dash: str) -> Trace:
    means = [100 * fmean(error(run.records, radius).value for run in runs) for radius in grid]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": literal(title),
        "x": list(grid),
        "y": means,
        # a sample is lost at its radius, so the share is a staircase
        "line": {"color": mark.color, "dash": dash, "width": 2 if dash == "solid" else 1.4, "shape": "hv"},
        "hovertemplate": "radius %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>",
    }


def _bars(name: str, runs: Sequence[Run], radii: Sequence[float], mark: Mark) -> Trace:
    cells = [Cell(tuple(certified_error(run.records, radius) for run in runs)) for radius in radii]
    means = [100 * spread_mean(cell) for cell in cells]
    up = [100 * cell.high - mean for cell, mean in zip(cells, means, strict=True)]
    down = [mean - 100 * cell.low for cell, mean in zip(cells, means, strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": literal(f"{name}, certified, 95 %"),
        "showlegend": False,
        "x": list(radii),
        "y": means,
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3},
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 7},
        "hovertemplate": "radius %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>",
    }


def _seconds(study: CertifiedStudy) -> list[tuple[str, str, float, float]]:
    """(classifier, metric, mean seconds to fit, mean seconds for each certified sample)."""
    rows = []
    for one in study.classifiers:
        for name, runs in one.by_name().items():
            fit = fmean(run.records.facts["training"]["seconds"] for run in runs)
            certify = fmean(run.records.facts["certifier"]["seconds"] / max(1, len(run.records)) for run in runs)
            rows.append((one.title, name, fit, certify))
    return rows
