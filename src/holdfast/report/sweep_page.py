"""The page of a sweep and its text: the best trial, accuracy against each key, and all trials."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from holdfast.records.atomic import write_text
from holdfast.report.figures import COLORS, Plot, Trace, error_bars, figure, literal, scatter
from holdfast.report.format import plain
from holdfast.report.page import Page, Section, write_page
from holdfast.report.sections.recipe import recipe_section
from holdfast.report.sweep import Axis, Sweep, Trial, conclusions, csv_text, value_text
from holdfast.report.table import UNKNOWN, Cell, Column, Row, Table, listing
from holdfast.report.text import inert, text_parts

_OTHER, _BEST = COLORS[0], COLORS[1]


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write trials.csv, trials.md and sweep.html, each as a whole or not at all."""
    write_text(folder / "trials.csv", csv_text(sweep))
    write_text(folder / "trials.md", markdown(sweep))
    write_page(folder / "sweep.html", sweep_page(sweep))


def text_sweep(sweep: Sweep) -> str:
    """All trials as Markdown that also reads well in a terminal, best first."""
    return "\n\n".join(text_parts([_trials(sweep)])) + "\n"


def markdown(sweep: Sweep) -> str:
    """The sweep as a document: the keys, all trials, and the command that trains the best."""
    keys = "\n".join(plain(f"- `{axis.key}`: {axis.values}") for axis in sweep.axes)
    head = [plain(f"# {sweep.title}: sweep of {sweep.method}"), keys, text_sweep(sweep).strip()]
    tail = [f"```sh\n{sweep.command}\n```"] if sweep.command else []
    return "\n\n".join([*map(inert, head), *tail]) + "\n"


def sweep_page(sweep: Sweep) -> Page:
    """The page of a sweep."""
    found = [_best(sweep), _plots(sweep), _trials(sweep), _space(sweep), _recipe(sweep)]
    return Page(
        name=sweep.name,
        title=f"{sweep.title}: sweep of {sweep.method}",
        description=f"{len(sweep.trials)} of {sweep.asked} trials, drawn by {sweep.sampler}, each trained with seed "
        f"{sweep.seed}.",
        facts={"Validated with": f"{sweep.judge} on validation samples"},
        sections=[section for section in found if section is not None],
        footer=f"Sweep of {sweep.method} in {sweep.name}. No test sample was used.",
    )


def _best(sweep: Sweep) -> Section | None:
    note = "To train the best trial with every seed of the recipe:"
    return Section(id="best", title="Best trial", sentences=[note], code=sweep.command) if sweep.command else None


def _plots(sweep: Sweep) -> Section | None:
    note = "Robust accuracy on validation samples; bars span 95 % Wilson intervals, the star is the best trial."
    plots = sweep_plots(sweep)
    return Section(id="plots", title="Accuracy of the trials", sentences=[note], plots=plots) if plots else None


def _trials(sweep: Sweep) -> Section:
    note = "Best first; percent of validation samples with 95 % Wilson intervals. trials.csv has all digits."
    columns = (
        *(Column(axis.key) for axis in sweep.axes),
        Column("Robust %", highlighted=True),
        *map(Column, ("Clean %", "n", "Epoch", "Seconds")),
        Column("State", kind="words"),
    )
    table = Table(head="Trial", columns=columns, rows=tuple(_row(sweep, trial) for trial in sweep.ranked))
    lead = conclusions(sweep)
    return Section(id="trials", title="All trials", sentences=[note], tables=[table], lead=lead, in_text=True)


def _row(sweep: Sweep, trial: Trial) -> Row:
    values = [value_text(trial.values.get(axis.key)) for axis in sweep.axes]
    counts = [UNKNOWN if trial.robust is None else str(trial.robust.n), value_text(trial.epoch)]
    seconds = UNKNOWN if trial.seconds is None else f"{trial.seconds:.1f}"
    state = f"{trial.state}: {trial.reason}" if trial.reason else trial.state
    shares = (Cell((trial.robust,)), Cell((trial.clean,)))
    return Row(name=str(trial.number), cells=(*values, *shares, *counts, seconds, state))


def _space(sweep: Sweep) -> Section:
    table = listing(["Key", "Values"], ([axis.key, axis.values] for axis in sweep.axes), words=["Values"])
    return Section(id="space", title="Search space", tables=[table])


def _recipe(sweep: Sweep) -> Section:
    versions = ", ".join(f"{name} {version}" for name, version in sweep.versions.items())
    note = "Without the swept values; all defaults are written out."
    return recipe_section(sweep.recipe, f"{note} Versions: {versions}." if versions else note)


def sweep_plots(sweep: Sweep) -> list[Plot]:
    """Robust accuracy against the trial number and against each key; none if no trial has a result."""
    done = sorted((trial for trial in sweep.trials if trial.robust is not None), key=lambda trial: trial.number)
    if not done:
        return []
    return [_history(sweep, done), *(_slice(sweep, axis, done) for axis in sweep.axes)]


def _history(sweep: Sweep, done: Sequence[Trial]) -> Plot:
    numbers = [trial.number for trial in done]
    points = _points(sweep, done, numbers)
    style = {"line": {"color": _BEST, "width": 1.5, "shape": "hv"}, "hoverinfo": "skip"}
    line = scatter("best so far", numbers, list(accumulate(points["y"], max)), "lines") | style
    return _plot("the trial", [line, points], {"title": {"text": "trial"}})


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
    return _plot(axis.key, [_points(sweep, known, x)], layout)


def _plot(against: str, traces: list[Trace], xaxis: dict[str, Any]) -> Plot:
    layout = {"xaxis": xaxis, "yaxis": {"title": {"text": "robust accuracy (%)"}}, "showlegend": False, "height": 340}
    alt = f"Scatter chart of validation robust accuracy against {against}; the table below holds the numbers"
    return Plot(f"Robust accuracy against {against}", alt, figure(traces, layout))


def _points(sweep: Sweep, trials: Sequence[Trial], x: Sequence[Any]) -> Trace:
    cells = [Cell((trial.robust,)) for trial in trials]
    chosen = [trial is sweep.best for trial in trials]
    return scatter("trials", x, [100 * cell.mean for cell in cells], "markers") | {
        "text": [literal(f"trial {trial.number}: {trial.values_text}") for trial in trials],
        "error_y": error_bars(cells, width=2) | {"color": _OTHER},
        "marker": {
            "color": [_BEST if best else _OTHER for best in chosen],
            "symbol": ["star" if best else "circle" for best in chosen],
            "size": [14 if best else 8 for best in chosen],
        },
        "hovertemplate": "%{text}<br>%{y:.1f} % robust<extra></extra>",
    }
