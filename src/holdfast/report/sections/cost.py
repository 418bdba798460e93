"""What training, prediction, attacks and certificates cost: seconds, forward and backward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from holdfast.records.facts import Spend
from holdfast.report.figures import STAGE_COLORS, Plot, Trace, figure, literal, marks
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_title
from holdfast.report.table import UNKNOWN, Kind, Table, listing

ORDER = 70

_TITLES = {"seconds": "Seconds", "forwards": "Forward passes (samples)", "backwards": "Backward passes (samples)"}
_NOTE = "Means over seeds. Passes are counted in samples, so they depend on neither batch size nor machine; seconds do."


def section(study: Study) -> Section | None:
    """Stacked bars for each cost, and a table with the numbers."""
    stages = stage_colors(study)
    if not stages:
        return None
    table, plots = _table(study), cost_plots(study)
    return Section(id="cost", title="Cost", sentences=[_NOTE], legend=stages, plots=plots, tables=[table])


def spend(run: Run) -> dict[str, Spend]:
    """The cost of each stage of a run, the certifier's too."""
    certifier = run.records.facts.get("certifier")
    return run.records.spend() | ({"certificate": Spend.read(certifier)} if certifier else {})


def stage_colors(study: Study) -> dict[str, str]:
    """The stages of all runs in the order they were run, with their colors."""
    stages = marks((stage for run in study.runs for stage in spend(run)), STAGE_COLORS)
    return {stage: mark.color for stage, mark in stages.items()}


def mean_spend(runs: Sequence[Run], stage: str) -> Spend | None:
    """The mean cost of a stage over the seeds that ran it."""
    found = [costs[stage] for run in runs if stage in (costs := spend(run))]
    if not found:
        return None
    return Spend(
        fmean(s.seconds for s in found),
        round(fmean(s.forwards for s in found)),
        round(fmean(s.backwards for s in found)),
    )


def cost_plots(study: Study) -> list[Plot]:
    """Each kind of cost that occurs, per title, stacked by stage; means over seeds."""
    plots = []
    for what, title in _TITLES.items():
        traces = [_bar(study, stage, color, what) for stage, color in stage_colors(study).items()]
        layout = {
            "barmode": "stack",
            "showlegend": False,
            "height": 120 + 34 * len(by_title(study.runs)),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "xaxis": {"rangemode": "tozero"},
            "margin": {"l": 56, "r": 16, "t": 16, "b": 32},
        }
        alt = f"Stacked bar chart of {title.lower()} for each method; the table below holds the numbers"
        if any(any(trace["x"]) for trace in traces):
            plots.append(Plot(title, alt, figure(traces, layout)))
    return plots


def _bar(study: Study, stage: str, color: str, what: str) -> Trace:
    groups = by_title(study.runs)
    return {
        "type": "bar",
        "orientation": "h",
        "name": literal(stage),
        "y": [literal(title) for title in groups],
        "x": [getattr(mean_spend(runs, stage) or Spend(), what) for runs in groups.values()],
        "marker": {"color": color},
        "hovertemplate": "%{y}: %{x:,.4~g}<extra>%{fullData.name}</extra>",
    }


def _table(study: Study) -> Table:
    numbers = ("Seconds", "Seconds per sample", "Forwards", "Backwards")
    kinds: dict[str, Kind] = {"Stage": "words", **dict.fromkeys(numbers, "number")}
    return listing("Method", kinds, _rows(study), "The numbers", folded=True)


def _rows(study: Study) -> Iterator[list[str]]:
    for title, runs in by_title(study.runs).items():
        samples = fmean(len(run.records) for run in runs)
        for stage in stage_colors(study):
            cost = mean_spend(runs, stage)
            if cost is not None:
                each = UNKNOWN if stage == "training" or not samples else f"{cost.seconds / samples:.4f}"
                yield [title, stage, f"{cost.seconds:.1f}", each, f"{cost.forwards:,}", f"{cost.backwards:,}"]
