"""How the models were trained: the logged numbers, the cost, and what the optimizers warned about."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from holdfast.report.elements.figures import Mark, Plot, Trace, colors, figure, marks, scatter
from holdfast.report.elements.format import percent
from holdfast.report.elements.table import UNKNOWN, Table, listing
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_title

ORDER = 50

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_POINTS = 300
_FALL = 0.05  # of the validation accuracy under attack, beyond the noise of a thousand samples
_ROBUST = 0.2  # an undefended model has some accuracy in its first epoch, which is not robustness that it loses
_COLUMNS = {
    "Training seconds": "seconds",
    "Forwards": "forwards",
    "Backwards": "backwards",
    "Epochs": "epochs",
    "Best epoch": "best_epoch",
}
_TITLES = {
    "clean": "accuracy without attack",
    "robust": "accuracy under attack",
    "easy": "gradient held by easy samples",
}
_CAPTIONS = {
    "clean": "Validation accuracy without attack. Good is high.",
    "robust": "Validation accuracy under attack. Good is high at the end; a fall after a peak is robust overfitting.",
    "loss": "Good falls and settles.",
    "easy": "The share of the gradient that the easier half of a batch holds. A half would be an equal share.",
}
_PART = "A part of the loss. Good settles; jumps and a rise at the end are signs of unstable training."
_NOTE = (
    "Validation with markers, training as a thin line; further seeds are dashed. Long logs are shown as means over "
    "intervals of equal length."
)


def section(study: Study) -> Section | None:
    """A plot for each logged number, and a table of all trainings."""
    plots = training_plots(study)
    table = training_table(study, folded=bool(plots))
    if table is None and not plots:
        return None
    looks = colors(study.titles)
    return Section(
        id="training",
        title="Training",
        sentences=[_NOTE] if plots else [],
        tables=[table] if table else [],
        legend={run.title: looks[run.title] for run in study.runs if run.metrics},
        plots=plots,
        findings=list(_overfitted(study)),
        warnings=_warnings(study),
    )


def _overfitted(study: Study) -> Iterator[str]:
    """Models that were clearly more robust on the validation samples before training ended (Rice et al. 2020)."""
    for run in study.runs:
        robust = [(row["epoch"], row["robust"]) for row in run.metrics if "epoch" in row and _number(row.get("robust"))]
        if not robust:
            continue
        epoch, best = max(robust, key=lambda at: at[1])
        last = robust[-1][1]
        if best >= _ROBUST and best - last >= _FALL:
            yield (
                f"{run.label} overfits: its validation accuracy under attack falls from {percent(best)} % in epoch "
                f"{epoch} to {percent(last)} % in the last one."
            )


def training_table(study: Study, folded: bool = False) -> Table | None:
    """Seconds, passes and epochs of each training, once if groups share it; None if no run was trained."""
    trained = [(run, facts) for run in study.runs if (facts := run.records.facts.get("training"))]
    columns = {title: name for title, name in _COLUMNS.items() if any(name in facts for _, facts in trained)}
    rows = dict.fromkeys(
        (run.name, str(run.seed), *(_number_text(facts.get(name)) for name in columns.values()))
        for run, facts in trained
    )
    titles = ["Method", "Seed", *columns]
    return listing(titles, rows, "Cost of each training", folded=folded) if rows else None


def _number_text(value: float | None) -> str:
    return UNKNOWN if value is None else str(round(value))


def _warnings(study: Study) -> list[str]:
    found: dict[str, list[str]] = {}
    for run in study.runs:
        for warning in run.records.facts.get("training", {}).get("warnings", []):
            found.setdefault(warning, []).append(f"{run.name} (seed {run.seed})")
    return [f"{warning}: {', '.join(dict.fromkeys(runs))}." for warning, runs in found.items()]


def training_plots(study: Study) -> list[Plot]:
    """One small figure for each logged number with all runs in it; numbers of the validation split come first."""
    groups, looks, plots = by_title(study.runs), marks(study.titles), []
    for scalar in _scalars(study):
        traces = [
            trace
            for title, runs in groups.items()
            for which, run in enumerate(runs)
            for split in ("train", "valid")
            if (trace := _log_line(run, scalar, split, looks[title], _DASHES[which % len(_DASHES)]))["x"]
        ]
        layout = {"xaxis": {"title": {"text": "step"}}, "showlegend": False, "height": 280}
        title = _TITLES.get(scalar, scalar.replace("_", " "))
        alt = f"Line chart of {title} against the training step"
        plots.append(Plot(title, alt, figure(traces, layout), caption=_CAPTIONS.get(scalar, _PART)))
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
    mode = "lines+markers" if split == "valid" else "lines"
    name = f"{run.title}, seed {run.seed}, {split}"
    return scatter(name, [x for x, _ in points], [y for _, y in points], mode) | {
        "opacity": 1 if split == "valid" else 0.75,
        "line": {"color": mark.color, "dash": dash, "width": 2 if split == "valid" else 1.2},
        "marker": {"color": mark.color, "symbol": mark.symbol, "size": 5},
        "hovertemplate": "step %{x:.0f}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _thinned(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Means over intervals of equal length once there are more points than a screen can show."""
    length = -(-len(points) // _MOST_POINTS)
    for start in range(0, len(points), max(1, length)):
        part = points[start : start + length]
        yield fmean(x for x, _ in part), fmean(y for _, y in part)
