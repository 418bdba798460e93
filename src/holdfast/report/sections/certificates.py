"""Certified and empirical robust error: tables at chosen radii and curves, for each norm and group of classifiers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from holdfast.records.records import Records
from holdfast.report.elements.figures import Mark, Plot, Trace, curve_figure, error_bars, marks, scatter
from holdfast.report.elements.format import eps_text, percent
from holdfast.report.elements.table import Cell, Column, Measure, Table, share_table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_name
from holdfast.report.summary import abstained, bounds, certificate_facts, certified_error, empirical_error, of_another
from holdfast.statistics import Share

ORDER = 40

_POINTS = 300
_DASHES = {"Certified": "solid", "Empirical": "dot"}
_CERTIFIER_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_NOTE = (
    "Robust error in percent of the samples.",
    "Certified: misclassified, or not proved to keep its label within the radius.",
    "Empirical: misclassified, or an adversarial example within the radius was found and verified.",
    "The true robust error lies between the two.",
    "Over several seeds: mean ± standard deviation; brackets span the 95 % Wilson intervals of all seeds.",
)

Error = Callable[[Records, str, float], Share]


@dataclass(frozen=True)
class _Group:
    """The runs of each name that have one certificate in one group: what one table and one plot show."""

    title: str
    group: str
    certificate: str
    runs: Mapping[str, Sequence[Run]]

    @property
    def norm(self) -> str:
        return self.certificate.partition(":")[0]

    @property
    def other(self) -> bool:
        """True if certified is another classifier than the one that was attacked: it has no empirical error."""
        return any(of_another(run.records, self.certificate) for runs in self.runs.values() for run in runs)

    @property
    def attacked(self) -> bool:
        """True if adversarial examples were looked for in this norm, by attacks or by the certifier itself."""
        records = [run.records for runs in self.runs.values() for run in runs]
        by_attacks = any(attack.norm == self.norm for one in records for attack in one.attacks.values())
        return by_attacks or any(np.isfinite(one.columns[f"upper:{self.certificate}"]).any() for one in records)

    @property
    def errors(self) -> Mapping[str, Error]:
        """The kinds of robust error that are known."""
        found: dict[str, Error] = {"Certified": certified_error}
        return found | {"Empirical": empirical_error} if self.attacked and not self.other else found

    def facts(self, key: str) -> list[Any]:
        """The distinct values of a fact of the certificate."""
        return certificate_facts([run for runs in self.runs.values() for run in runs], self.certificate, key)

    def cell(self, name: str, error: Error, radius: float) -> Cell:
        return Cell(tuple(error(run.records, self.certificate, radius) for run in self.runs[name]))

    def measure(self, error: Error, radius: float) -> Measure:
        return lambda records: error(records, self.certificate, radius)


def section(study: Study) -> Section | None:
    """A table and a plot for each norm, certifier and group: radii of two norms cannot be compared."""
    groups = [_Group(_title(*key), *key, by_name(runs)) for key, runs in study.certified().items()]
    if not groups:
        return None
    looks = marks(name for group in groups for name in group.runs)
    return Section(
        id="certificates",
        title="Certificates",
        sentences=[*_NOTE, *(sentence for group in groups for sentence in _about(group))],
        tables=[_table(group, study.radii, looks) for group in groups],
        plots=[*_together(groups, looks), *(_plot(group, study.radii, looks) for group in groups)],
        findings=[_ranking(group, study.radii) for group in groups if study.radii],
        in_text=True,
    )


def _title(group: str, certificate: str) -> str:
    norm, _, certifier = certificate.partition(":")
    return ", ".join(filter(None, [group, f"{norm} radii of {certifier}"]))


def _about(group: _Group) -> list[str]:
    """What is certified, if that is not the classifier itself, and how likely a radius is wrong."""
    said = [
        f"{group.title} are those of {of}: it is another classifier than the network that was attacked, so only its "
        "certified error is known."
        for of in group.facts("certifies")
    ]
    if not group.attacked and not group.other:
        said.append(f"{group.title}: no attack in {group.norm} was run, so only the certified error is known.")
    for alpha in group.facts("alpha"):
        cells = {
            n: Cell(tuple(abstained(r.records, group.certificate) for r in runs)) for n, runs in group.runs.items()
        }
        shares = ", ".join(f"{name} {percent(cell.mean)}" for name, cell in cells.items() if cell.known)
        said.append(
            f"{group.title} depend on random noise: each radius is wrong with a probability of at most {alpha:g}. "
            f"Abstentions count as errors; in percent of the samples: {shares}."
        )
    return said


def _together(groups: Sequence[_Group], looks: Mapping[str, Mark]) -> list[Plot]:
    """For each norm with several certifiers, the certified error of all of them in one plot."""
    plots = []
    for norm in dict.fromkeys(group.norm for group in groups):
        same = [group for group in groups if group.norm == norm]
        if len({group.certificate for group in same}) > 1:
            plots.append(_one_norm(norm, same, looks))
    return plots


def _one_norm(norm: str, groups: Sequence[_Group], looks: Mapping[str, Mark]) -> Plot:
    """A color for each classifier, as in the tables, and a dash for each certifier."""
    lines = {_named(group, name): (group, name) for group in groups for name in group.runs}
    grid = sorted({radius for group in groups for radius in _grid(group)})
    dashes = dict(zip((group.title for group in groups), cycle(_CERTIFIER_DASHES), strict=False))
    traces = [
        _line(
            line,
            {radius: group.cell(name, certified_error, radius) for radius in grid},
            looks[name],
            dashes[group.title],
        )
        for line, (group, name) in lines.items()
    ]
    what = f"certified error of all classifiers against the {norm} radius"
    figure = curve_figure(traces, f"{norm} radius", "certified error (%)")
    caption = "Good is a line that stays low far to the right. Colors are classifiers, dashes certifiers."
    return Plot(
        f"All {norm} radii: {what}", f"Line chart of {what}: {', '.join(lines)}", figure, wide=True, caption=caption
    )


def _named(group: _Group, name: str) -> str:
    _, _, certifier = group.certificate.partition(":")
    return ", ".join(filter(None, [name, group.group, certifier]))


def _table(group: _Group, radii: Sequence[float], looks: Mapping[str, Mark]) -> Table:
    """Clean error, and certified and empirical error at each radius."""
    measures = [(Column("Clean error"), group.measure(certified_error, 0.0))]
    for radius in radii:
        for name, error in group.errors.items():
            measures.append((Column(f"{name} {eps_text(radius)}"), group.measure(error, radius)))
    return share_table(group.runs, measures, {name: mark.color for name, mark in looks.items()}, group.title)


def _ranking(group: _Group, radii: Sequence[float]) -> str:
    parts = []
    for radius in radii:
        means = {name: group.cell(name, certified_error, radius).mean for name in group.runs}
        ranked = sorted(means, key=lambda name: means[name])
        parts.append(f"at {eps_text(radius)} " + ", ".join(f"{name} {percent(means[name])}" for name in ranked))
    return f"{group.title}, mean certified error in percent, lowest first: {'; '.join(parts)}."


def _plot(group: _Group, radii: Sequence[float], looks: Mapping[str, Mark]) -> Plot:
    """Robust error against the radius: certified solid, empirical dotted; the true error lies between the two."""
    grid, traces = _grid(group), []
    for name in group.runs:
        for kind, error in group.errors.items():
            cells = {radius: group.cell(name, error, radius) for radius in grid}
            traces.append(_line(f"{name}, {kind.lower()}", cells, looks[name], _DASHES[kind]))
        cells = {radius: group.cell(name, certified_error, radius) for radius in radii}
        traces.append(_bars(f"{name}, certified, 95 %", cells, looks[name]))
    what = f"robust error against the {group.norm} radius"
    alt = f"Line chart of {' and '.join(group.errors).lower()} {what} for {', '.join(group.runs)}"
    figure = curve_figure(traces, f"{group.norm} radius", "robust error (%)")
    caption = "Good is a certified line that stays low far to the right" + (
        ", and close to the empirical one below it." if "Empirical" in group.errors else "."
    )
    return Plot(f"{group.title}: {what}", alt, figure, wide=True, caption=caption)


def _grid(group: _Group) -> list[float]:
    """The radii at which the error of some run changes, thinned to as many as a screen can show."""
    records = [run.records for runs in group.runs.values() for run in runs]
    ends = np.concatenate([np.concatenate(bounds(one, group.certificate)) for one in records])
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
