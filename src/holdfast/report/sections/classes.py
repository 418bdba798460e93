"""Accuracy of each class, without attack and in the worst case."""

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.records.records import Mask, Records
from holdfast.report.elements.figures import Mark, Plot, Trace, error_bars, figure, literal, marks, scatter
from holdfast.report.elements.format import eps_text
from holdfast.report.elements.table import Cell, Column, Row, Table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study
from holdfast.statistics import Share

ORDER = 31

_MOST = 20  # classes that are shown, the weakest ones


def section(study: Study) -> Section | None:
    """A dot chart of the worst case of each class, and a table with the accuracy without attack too."""
    if study.norm is None or study.eps is None or not study.attacked():
        return None
    classes = _weakest(study)
    if len(classes) < 2:
        return None
    where = f"under all {study.norm} attacks within eps {eps_text(study.eps)}"
    many = {len(np.unique(run.records.columns["y"])) for run in study.runs}
    few = f" The {len(classes)} weakest of {max(many)} classes." if max(many) > len(classes) else ""
    note = f"Accuracy of the samples of each class, in percent, without attack and {where}.{few}"
    return Section(
        id="classes", title="Classes", sentences=[note], plots=[_plot(study, classes)], tables=[_table(study, classes)]
    )


def _weakest(study: Study) -> list[int]:
    """The classes, those with the lowest accuracy first if they are too many to show."""
    groups = study.attacked()
    classes = sorted({int(k) for runs in groups.values() for run in runs for k in np.unique(run.records.columns["y"])})
    if len(classes) <= _MOST:
        return classes
    worst = {
        k: min(_cell(study, runs, k).mean for runs in groups.values() if _cell(study, runs, k).known) for k in classes
    }
    return sorted(sorted(classes, key=lambda k: worst[k])[:_MOST])


def _of_class(records: Records, k: int, mask: Mask) -> Share:
    return Share.of(mask[records.columns["y"] == k])


def _cell(study: Study, runs: Sequence[Run], k: int, attacked: bool = True) -> Cell:
    held = [run.records.held(study.eps or 0.0, study.norm or "") if attacked else run.records.correct for run in runs]
    return Cell(tuple(_of_class(run.records, k, mask) for run, mask in zip(runs, held, strict=True)))


def _table(study: Study, classes: Sequence[int]) -> Table:
    groups = study.attacked()
    columns = [Column(title, note) for title in groups for note in ("no attack", "worst case")]
    rows = tuple(
        Row(
            name=str(k),
            cells=tuple(_cell(study, runs, k, attacked) for runs in groups.values() for attacked in (False, True)),
        )
        for k in classes
    )
    return Table(head="Class", columns=tuple(columns), rows=rows, caption="Accuracy of each class, %", folded=True)


def _plot(study: Study, classes: Sequence[int]) -> Plot:
    groups, looks = study.attacked(), marks(study.titles)
    traces = [_dots(title, {k: _cell(study, runs, k) for k in classes}, looks[title]) for title, runs in groups.items()]
    layout = {
        "xaxis": {"title": {"text": "class"}, "type": "category"},
        "yaxis": {"title": {"text": "correct in the worst case (%)"}, "range": [-2, 102]},
        "scattermode": "group",
        "legend": {"orientation": "h", "y": -0.25},
        "height": 380,
    }
    alt = f"Dot chart of the worst-case accuracy of each class for {', '.join(groups)}"
    caption = (
        "Good is high for every class: a low dot is a class that an attacker would choose. Bars span 95 % intervals."
    )
    return Plot("Worst-case accuracy of each class", alt, figure(traces, layout), wide=True, caption=caption)


def _dots(title: str, cells: Mapping[int, Cell], mark: Mark) -> Trace:
    known = {k: cell for k, cell in cells.items() if cell.known}
    bars = error_bars(list(known.values()))
    dots = scatter(title, [literal(str(k)) for k in known], [100 * cell.mean for cell in known.values()], "markers")
    return dots | {"error_y": bars, "marker": {"color": mark.color, "symbol": mark.symbol, "size": 8}}
