"""Certified and empirical robust error: tables at chosen radii and curves, for each norm and group of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from holdfast.records.records import Records
from holdfast.report.figures import Mark, Plot, Trace, curve_figure, error_bars, marks, scatter
from holdfast.report.format import eps_text, percent
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_name
from holdfast.report.summary import bounds, certified_error, empirical_error
from holdfast.report.table import Cell, Column, Measure, Table, share_table
from holdfast.statistics import Share

ORDER = 40

_POINTS = 300
_NOTE = (
    "Robust error in percent of the samples.",
    "Certified: misclassified, or not proved to keep its label within the radius.",
    "Empirical: misclassified, or an adversarial example within the radius was found and verified.",
    "The true robust error lies between the two.",
    "Over several seeds: mean ± standard deviation; brackets span the 95 % Wilson intervals of all seeds.",
)

Groups = Mapping[str, Sequence[Run]]
Error = Callable[[Records, str, float], Share]


def section(study: Study) -> Section | None:
    """A table and a plot for each norm, certifier and group: radii of two norms cannot be compared."""
    found = study.certified()
    if not found:
        return None
    looks = marks(run.name for runs in found.values() for run in runs)
    each = [(title(*key), key[1], by_name(runs)) for key, runs in found.items()]
    return Section(
        id="certificates",
        title="Certificates",
        sentences=_NOTE,
        tables=[error_table(*given, study.radii, looks) for given in each],
        plots=[error_plot(*given, study.radii, looks) for given in each],
        lead=[_ranking(*given, study.radii) for given in each if study.radii],
        in_text=True,
    )


def title(group: str, certificate: str) -> str:
    """The classifier with the norm of its radii and its certifier."""
    norm, _, certifier = certificate.partition(":")
    return ", ".join(filter(None, [group, f"{norm} radii of {certifier}"]))


def error_table(
    caption: str, certificate: str, groups: Groups, radii: Sequence[float], looks: Mapping[str, Mark]
) -> Table:
    """Clean error, and certified and empirical error at each radius."""
    measures = [(Column("Clean error"), _at(empirical_error, certificate, 0.0))]
    for radius in radii:
        for name, error in (("Certified", certified_error), ("Empirical", empirical_error)):
            measures.append((Column(f"{name} {eps_text(radius)}"), _at(error, certificate, radius)))
    return share_table(groups, measures, {name: mark.color for name, mark in looks.items()}, caption)


def _at(error: Error, certificate: str, radius: float) -> Measure:
    return lambda records: error(records, certificate, radius)


def _cell(runs: Sequence[Run], error: Error, certificate: str, radius: float) -> Cell:
    return Cell(tuple(error(run.records, certificate, radius) for run in runs))


def _ranking(caption: str, certificate: str, groups: Groups, radii: Sequence[float]) -> str:
    parts = []
    for radius in radii:
        means = {name: _cell(runs, certified_error, certificate, radius).mean for name, runs in groups.items()}
        ranked = sorted(means, key=lambda name: means[name])
        parts.append(f"at {eps_text(radius)} " + ", ".join(f"{name} {percent(means[name])}" for name in ranked))
    return f"{caption}, mean certified error in percent, lowest first: {'; '.join(parts)}."


def error_plot(
    caption: str, certificate: str, groups: Groups, radii: Sequence[float], looks: Mapping[str, Mark]
) -> Plot:
    """Robust error against the radius: certified solid, empirical dotted; the true error lies between the two."""
    norm, _, _ = certificate.partition(":")
    grid = _grid([run.records for runs in groups.values() for run in runs], certificate)
    traces = []
    for name, runs in groups.items():
        for kind, error, dash in (("certified", certified_error, "solid"), ("empirical", empirical_error, "dot")):
            cells = {radius: _cell(runs, error, certificate, radius) for radius in grid}
            traces.append(_line(f"{name}, {kind}", cells, looks[name], dash))
        cells = {radius: _cell(runs, certified_error, certificate, radius) for radius in radii}
        traces.append(_bars(f"{name}, certified, 95 %", cells, looks[name]))
    alt = f"Line chart of certified and empirical robust error against the {norm} radius for {', '.join(groups)}"
    figure = curve_figure(traces, f"{norm} radius", "robust error (%)")
    return Plot(f"{caption}: robust error against the radius", alt, figure, wide=True)


def _grid(records: Sequence[Records], certificate: str) -> list[float]:
    """The radii at which the error of some run changes, thinned to as many as a screen can show."""
    ends = np.concatenate([np.concatenate(bounds(one, certificate)) for one in records])
    ends = np.unique(ends[np.isfinite(ends)])
    if len(ends) > _POINTS:
        ends = np.quantile(ends, np.linspace(0, 1, _POINTS))
    return sorted({0.0, *ends.tolist()})


def _points(name: str, cells: Mapping[float, Cell]) -> Trace:
    known = {radius: cell for radius, cell in cells.items() if cell.known}
    hover = "radius %{x:.4g}: %{y:.1f} %<extra>%{fullData.name}</extra>"
    return scatter(name, list(known), [100 * cell.mean for cell in known.values()]) | {"hovertemplate": hover}


def _line(name: str, cells: Mapping[float, Cell], mark: Mark, dash: str) -> Trace:
    # the error steps up at the radius of each sample, so the curve is a staircase
    line = {"color": mark.color, "dash": dash, "width": 2 if dash == "solid" else 1.4, "shape": "hv"}
    return _points(name, cells) | {"mode": "lines", "line": line}


def _bars(name: str, cells: Mapping[float, Cell], mark: Mark) -> Trace:
    return _points(name, cells) | {
        "mode": "markers",
        "showlegend": False,
        "error_y": error_bars([cell for cell in cells.values() if cell.known]),
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 7},
    }
