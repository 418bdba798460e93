"""The loss around samples: over two random directions, and beside its linear expansion."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from holdfast.analysis.linearity import Linearity
from holdfast.report.elements.figures import Plot, Trace, colors, figure, literal, marks, scatter
from holdfast.report.elements.format import eps_text
from holdfast.report.elements.table import Column, RunMeasure, Table, listing, run_table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, analysis_of
from holdfast.statistics import Estimate

ORDER = 37

_EXAMPLES = 3
_NOTE = (
    "Curvature is the mean absolute second difference of the loss over two random directions of length eps, rise the "
    "largest loss there minus that at the sample; low is smooth. The directions are the same for all models.",
    "The linearity gap is how far the loss deviates from its linear expansion, maximized within eps (Qin et al. 2019); "
    "low is good.",
)


def section(study: Study) -> Section | None:
    """Heat maps of some samples, a table of smoothness, and the linearity gap."""
    groups = study.analyzed()
    if not groups:
        return None
    return Section(
        id="landscapes",
        title="Loss around samples",
        sentences=_NOTE,
        tables=[_table(study, groups), _statistics(study, groups)],
        plots=[*_heat_maps(study), *_gaps(study)],
    )


def _table(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    first = analysis_of(next(iter(groups.values()))[0])
    measures: list[tuple[Column, RunMeasure]] = []
    if first.landscape is not None:
        where = f"of {first.landscape.rise.n} samples"
        measures += [(Column("Curvature", where), _curvature), (Column("Rise", where), _rise)]
    for number, eps in enumerate(first.linearity.eps):
        note = f"eps {_short(eps)}, {first.linearity.steps[-1]} steps"
        measures.append((Column("Linearity gap", note), partial(_gap, eps=number)))
    return run_table(groups, measures, colors(study.titles), size=lambda run: len(analysis_of(run).followed))


def _statistics(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    """The distribution of the linearity gap over the samples, for the first seed of each model."""
    titles = ("Method", "eps", "Steps", "Mean", "Median", "95 % quantile", "Largest")
    rows = [
        [name, _short(eps), str(steps), *(f"{number:.3f}" for number in numbers)]
        for name, runs in groups.items()
        for eps, steps, *numbers in _gap_rows(analysis_of(runs[0]).linearity)
    ]
    caption = f"The linearity gap over eps and steps{study.first_seed and ', first seed'}"
    return listing(titles, rows, caption, folded=True)


def _short(eps: float) -> str:
    """A share of an eps, which may be no round number."""
    text = eps_text(eps)
    return text if "/" in text else f"{eps:.3g}"


def _gap_rows(found: Linearity) -> Iterator[tuple[float, ...]]:
    for i, eps in enumerate(found.eps):
        for j, steps in enumerate(found.steps):
            yield eps, steps, found.mean[i][j].value, found.median[i, j], found.upper[i, j], found.largest[i, j]


def _curvature(run: Run) -> Estimate | None:
    found = analysis_of(run).landscape
    return None if found is None else found.curvature


def _rise(run: Run) -> Estimate | None:
    found = analysis_of(run).landscape
    return None if found is None else found.rise


def _gap(run: Run, eps: int) -> Estimate:
    return analysis_of(run).linearity.mean[eps][-1]


def _heat_maps(study: Study) -> Iterator[Plot]:
    """The loss of the first samples, one row of maps for each model; a column has one color scale."""
    runs = {name: same[0] for name, same in study.analyzed().items()}
    losses = {name: analysis_of(run).followed.arrays.get("losses:surface") for name, run in runs.items()}
    shown = {name: given[:_EXAMPLES] for name, given in losses.items() if given is not None}
    if not shown:
        return
    first = analysis_of(runs[next(iter(shown))])
    eps, columns = first.facts["levels"][-1]["eps"], min(len(given) for given in shown.values())
    at = np.linspace(-eps, eps, next(iter(shown.values())).shape[1]).round(6).tolist()
    traces: list[Trace] = []
    layout: dict[str, Any] = {
        "height": 60 + 190 * len(shown),
        "annotations": [],
        "margin": {"l": 40, "r": 8, "t": 28, "b": 28},
    }
    for row, (name, given) in enumerate(shown.items()):
        for column in range(columns):
            number = row * columns + column + 1
            top = max(float(one[column].max()) for one in shown.values())
            traces.append(_heat_map(name, given[column], at, number, top))
            layout |= _cell(row, column, len(shown), columns, number)
        layout["annotations"].append(_row_name(name, row, len(shown)))
    who = [f"sample {index}" for index in _indices(runs[next(iter(shown))], columns)]
    layout["annotations"] += [_column_name(text, column, columns) for column, text in enumerate(who)]
    caption = (
        f"The loss around {columns} samples over two random directions, up to {eps_text(eps)} along each; dark is low, "
        "and a column has one scale. Good is an even, dark surface; ridges close to the center are adversarial "
        f"examples. Points may leave the range of inputs.{study.first_seed}"
    )
    alt = f"Heat maps of the loss around {columns} samples for {', '.join(shown)}"
    yield Plot("Loss over two random directions", alt, figure(traces, layout), wide=True, caption=caption)


def _indices(run: Run, many: int) -> list[int]:
    followed = analysis_of(run).followed
    return [int(followed.columns["index"][row]) for row in followed.arrays["row:surface"][:many]]


def _heat_map(name: str, losses: Any, at: Sequence[float], number: int, top: float) -> Trace:
    suffix = "" if number == 1 else str(number)
    return {
        "type": "heatmap",
        "name": literal(name),
        "x": list(at),
        "y": list(at),
        "z": np.round(losses.T.astype(np.float64), 3).tolist(),
        "zmin": 0,
        "zmax": round(top, 3),
        "colorscale": "Viridis",
        "showscale": False,
        "xaxis": f"x{suffix}",
        "yaxis": f"y{suffix}",
        "hovertemplate": "loss %{z:.3g} at (%{x:.3g}, %{y:.3g})<extra>%{fullData.name}</extra>",
    }


def _cell(row: int, column: int, rows: int, columns: int, number: int) -> dict[str, Any]:
    """The axes of one map of the grid."""
    suffix, gap = "" if number == 1 else str(number), 0.03
    x = [column / columns + gap / 2, (column + 1) / columns - gap / 2]
    numbered = row == rows - 1 and column == 0  # all maps have one range, and on a phone more numbers would collide
    y = [1 - (row + 1) / rows + gap / 2, 1 - row / rows - gap / 2]
    return {
        f"xaxis{suffix}": {"domain": x, "anchor": f"y{suffix}", "showticklabels": numbered, "nticks": 3},
        f"yaxis{suffix}": {"domain": y, "anchor": f"x{suffix}", "showticklabels": False, "ticks": ""},
    }


def _row_name(name: str, row: int, rows: int) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": -0.012, "y": 1 - (row + 0.5) / rows}
    return place | {
        "text": literal(name),
        "textangle": -90,
        "showarrow": False,
        "xanchor": "right",
        "yanchor": "middle",
    }


def _column_name(text: str, column: int, columns: int) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": (column + 0.5) / columns, "y": 1.0}
    return place | {"text": text, "showarrow": False, "xanchor": "center", "yanchor": "bottom"}


def _gaps(study: Study) -> Iterator[Plot]:
    first = analysis_of(next(iter(study.analyzed().values()))[0]).linearity
    caption = (
        "The mean over the followed samples. Good is a line that stays low; one that still rises needs more steps."
        f"{study.first_seed}"
    )
    at_eps = f"Linearity gap against its steps, eps {eps_text(first.eps[-1])}"
    yield _lines(study, at_eps, "steps", caption, lambda run: (first.steps, analysis_of(run).linearity.mean[-1]))
    at_steps = f"Linearity gap against eps, {first.steps[-1]} steps"
    yield _lines(
        study,
        at_steps,
        "eps",
        f"The mean over the followed samples. Good is a line that stays low.{study.first_seed}",
        lambda run: (first.eps, [row[-1] for row in analysis_of(run).linearity.mean]),
    )


def _lines(
    study: Study, title: str, x: str, caption: str, of: Callable[[Run], tuple[Sequence[float], Sequence[Estimate]]]
) -> Plot:
    looks, traces = marks(study.titles), []
    for name, runs in study.analyzed().items():
        at, found = of(runs[0])
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.value for one in found],
            "arrayminus": [one.value - one.low for one in found],
            "thickness": 1,
            "width": 3,
        }
        mark = {"color": looks[name].color, "symbol": looks[name].symbol, "size": 6}
        line = {"color": looks[name].color, "width": 2}
        values = [one.value for one in found]
        traces.append(scatter(name, at, values) | {"error_y": bars, "line": line, "marker": mark})
    layout = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": "linearity gap"}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.25},
        "height": 340,
    }
    alt = f"Line chart of the linearity gap against {x} for {', '.join(study.analyzed())}"
    return Plot(title, alt, figure(traces, layout), caption=caption)
