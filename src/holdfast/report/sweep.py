"""A sweep: its trials with their values and results, its page, and its text."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from holdfast.recipes.tables.sweep import Value
from holdfast.records.files import write_text
from holdfast.report.elements.figures import COLORS, Plot, Trace, error_bars, figure, literal, scatter
from holdfast.report.elements.format import listed, percent, plain
from holdfast.report.elements.table import UNKNOWN, Cell, Column, Row, Table, listing, share_text
from holdfast.report.page import Opening, Page, Section, write_page
from holdfast.report.sections.recipe import recipe_section
from holdfast.report.text import inert, text_parts
from holdfast.statistics import Share

DONE, FAILED, RUNNING, SAME = "done", "failed", "running", "same"
_OTHER, _BEST = COLORS[0], COLORS[1]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One key of a sweep and its range or list as written; ``listed`` has all values if they are finite in number."""

    key: str
    values: str
    log: bool = False
    listed: Sequence[Value] | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: its values, its state, and its robust and clean accuracy on validation samples."""

    number: int
    state: str
    values: Mapping[str, Value]
    robust: Share | None = None
    clean: Share | None = None
    epoch: int | None = None
    seconds: float | None = None
    reason: str = ""

    @property
    def values_text(self) -> str:
        return ", ".join(f"{key} {value_text(value)}" for key, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All trials of one method; ``judge`` is the attack of the validation, ``command`` trains the best trial.

    ``date`` is the day of the last change.
    """

    name: str
    title: str
    method: str
    seed: int
    judge: str
    sampler: str
    axes: Sequence[Axis]
    trials: Sequence[Trial]
    asked: int
    recipe: str
    data: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first; trials without a result come last, in their order."""
        return sorted(self.trials, key=lambda trial: -1 if trial.robust is None else trial.robust.value, reverse=True)

    @property
    def best(self) -> Trial | None:
        """The trial with the highest robust accuracy; the earliest of equals."""
        return next((trial for trial in self.ranked if trial.robust is not None), None)

    @property
    def ended(self) -> int:
        """The number of trials that are finished or failed."""
        return len(self.trials) - self.running

    @property
    def running(self) -> int:
        """The number of trials that are still running."""
        return sum(trial.state == RUNNING for trial in self.trials)

    @property
    def so_far(self) -> str:
        """The best trial so far in a few words."""
        return "" if self.best is None else f"best: trial {self.best.number}, {share_text(self.best.robust)} %"


def value_text(value: Value | None) -> str:
    """A value short enough for a table."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def conclusions(sweep: Sweep) -> list[str]:
    """The best trial, how to read its interval, and how many trials gave no result, in sentences."""
    found, best = [], sweep.best
    done = sum(trial.state == DONE for trial in sweep.trials)
    if best is not None and best.robust is not None and best.clean is not None:
        found.append(
            f"Best of {done}: trial {best.number} ({best.values_text}) has a robust accuracy of "
            f"{percent(best.robust.value)} % on {best.robust.n} validation samples (95 % interval "
            f"{percent(best.robust.low)} to {percent(best.robust.high)}) under {sweep.judge}, and a clean accuracy of "
            f"{percent(best.clean.value)} %."
        )
        found.append(
            "The interval is of one trial, seed and validation set; the best of many on the same samples looks better "
            "than it is. No test sample was used: train it, then evaluate."
        )
    for state, ending in ((FAILED, "failed"), (SAME, "repeated earlier values"), (RUNNING, "are still running")):
        if many := sum(trial.state == state for trial in sweep.trials):
            found.append(f"{many} of {len(sweep.trials)} trials {ending}.")
    return found


def csv_text(sweep: Sweep) -> str:
    """All trials as csv in the order of their numbers, with all digits; unknown values are empty."""
    keys = [axis.key for axis in sweep.axes]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    shares = ["robust", "robust_low", "robust_high", "clean", "samples"]
    writer.writerow(["trial", "state", *keys, *shares, "epoch", "seconds", "reason"])
    for trial in sorted(sweep.trials, key=lambda trial: trial.number):
        values = [trial.values.get(key, "") for key in keys]
        results = ["", "", "", "", ""]
        if (robust := trial.robust) is not None and trial.clean is not None:
            results = [*map(repr, (robust.value, robust.low, robust.high, trial.clean.value)), str(robust.n)]
        writer.writerow([trial.number, trial.state, *values, *results, trial.epoch, trial.seconds, trial.reason])
    return text.getvalue()


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write trials.csv, trials.md and sweep.html, each as a whole or not at all."""
    write_text(folder / "trials.csv", csv_text(sweep))
    write_text(folder / "trials.md", markdown(sweep))
    write_page(folder / "sweep.html", sweep_page(sweep))


def text_sweep(sweep: Sweep) -> str:
    """All trials as Markdown that also reads well in a terminal, best first."""
    return "\n\n".join([*text_parts([_trials(sweep)]), plain(" ".join(conclusions(sweep)))]) + "\n"


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
        opening=_opening(sweep),
        facts={name: text for name, text in _facts(sweep).items() if text},
        sections=[section for section in found if section is not None],
        footer=f"Sweep of {sweep.method} in {sweep.name}. No test sample was used.",
    )


def _facts(sweep: Sweep) -> dict[str, str]:
    sizes = dict.fromkeys(f"{trial.robust.n:,}" for trial in sweep.trials if trial.robust is not None)
    return {
        "Data": sweep.data,
        "Validated with": sweep.judge,
        "Validation samples": ", ".join(sizes),
        "Trials": f"{len(sweep.trials)} of {sweep.asked}, drawn by {sweep.sampler}",
        "Seed": str(sweep.seed),
        "Measured": sweep.date,
    }


def _opening(sweep: Sweep) -> Opening:
    keys = listed([axis.key for axis in sweep.axes])
    first, *others = conclusions(sweep) or ["No trial has finished yet."]
    question = f"Which value of {keys} makes {sweep.method} most robust?"
    return Opening(question=question, answer=[first], plot=next(iter(sweep_plots(sweep)), None), changes=others)


def _best(sweep: Sweep) -> Section | None:
    note = "To train the best trial with every seed of the recipe:"
    return Section(id="best", title="Best trial", sentences=[note], code=sweep.command) if sweep.command else None


def _plots(sweep: Sweep) -> Section | None:
    note = "Robust accuracy on validation samples; bars span 95 % Wilson intervals, the star is the best trial."
    plots = sweep_plots(sweep)[1:]  # the first is on the first screen
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
    return Section(id="trials", title="All trials", sentences=[note], tables=[table], in_text=True)


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
    caption = "Good is high; where neighboring values differ by less than the bars, the choice matters little."
    return Plot(f"Robust accuracy against {against}", alt, figure(traces, layout), caption=caption)


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
