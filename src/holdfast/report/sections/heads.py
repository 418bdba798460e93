"""What the last layer does with features: lengths, angles, and the share of the gradient that easy samples hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from holdfast.analysis.head import Head
from holdfast.records.records import Array
from holdfast.report.elements.figures import Plot, colors, figure, literal, marks, scatter
from holdfast.report.elements.table import Column, RunMeasure, Table, listing, run_table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, analysis_of
from holdfast.statistics import Estimate

ORDER = 38

_NOTE = (
    "Lengths are Euclidean, angles those between features and the weight vector of their class. Where both lengths "
    "differ much between classes, hypersphere embedding changes the decision (Pang et al. 2020); the mean norm of the "
    "logits of a plain model guides the choice of its scale.",
    "Easy share: how much of the gradient of the cross entropy the half of the samples with the smallest loss holds; "
    "a half would be an equal share.",
)


_EVEN = "Good is one height for all classes: a class with a longer {} wins samples by its length alone."
_PLOTS: tuple[tuple[str, Callable[[Head], Array], str], ...] = (
    ("Weight length", lambda head: head.class_weights, _EVEN.format("weight vector")),
    ("Feature length", lambda head: head.class_lengths, "Good is one height for all classes."),
    ("Angle to the class weight", lambda head: head.class_angles, "Degrees. Good is low for every class."),
)


def section(study: Study) -> Section | None:
    """A table of means, and the numbers of each class folded below it."""
    groups = {
        title: kept
        for title, runs in study.analyzed().items()
        if (kept := [run for run in runs if analysis_of(run).head is not None])
    }
    if not groups:
        return None
    titles = ("Method", "Class", "Samples", "Weight length", "Feature length", "Angle (degrees)")
    each = listing(titles, _classes(groups), f"Each class{study.first_seed and ', first seed'}", folded=True)
    return Section(
        id="heads",
        title="Last layer",
        sentences=_NOTE,
        tables=[_table(study, groups), each],
        plots=[_plot(study, groups, *kind) for kind in _PLOTS],
        in_text=True,
    )


def _plot(study: Study, groups: Mapping[str, Sequence[Run]], what: str, of: Callable[[Head], Array], good: str) -> Plot:
    """A dot for each class and model, for the first seed."""
    looks, traces = marks(study.titles), []
    for title, runs in groups.items():
        found = analysis_of(runs[0]).head
        assert found is not None  # only runs that have one
        values = [None if np.isnan(value) else round(float(value), 4) for value in of(found)]
        dots = scatter(title, [literal(str(k)) for k in range(len(values))], values, "markers")
        traces.append(dots | {"marker": {"color": looks[title].color, "symbol": looks[title].symbol, "size": 8}})
    layout = {
        "xaxis": {"title": {"text": "class"}, "type": "category"},
        "yaxis": {"title": {"text": what.lower()}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.25},
        "height": 320,
    }
    alt = f"Dot chart of the {what.lower()} of each class for {', '.join(groups)}"
    return Plot(f"{what} of each class", alt, figure(traces, layout), caption=f"{good}{study.first_seed}")


def _table(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    fields: dict[tuple[str, str], Callable[[Head], Estimate]] = {
        ("Feature length", ""): lambda head: head.lengths,
        ("Angle to the class weight", "degrees"): lambda head: head.angles,
        ("Logit norm", ""): lambda head: head.logits,
        ("Easy share", "of the gradient"): lambda head: head.easy,
    }
    measures: list[tuple[Column, RunMeasure]] = [(Column(*title), _of(field)) for title, field in fields.items()]
    return run_table(
        groups, measures, colors(study.titles), "Lengths and angles", size=lambda run: len(analysis_of(run).samples)
    )


def _of(field: Callable[[Head], Estimate]) -> RunMeasure:
    def measure(run: Run) -> Estimate | None:
        found = analysis_of(run).head
        return None if found is None else field(found)

    return measure


def _classes(groups: Mapping[str, Sequence[Run]]) -> Iterator[list[str]]:
    for title, runs in groups.items():
        head = analysis_of(runs[0]).head
        assert head is not None  # only runs that have one
        columns = (head.class_weights, head.class_lengths, head.class_angles)
        for k, (count, *numbers) in enumerate(zip(head.counts, *columns, strict=True)):
            yield [title, str(k), str(int(count)), *(f"{number:.3f}" for number in numbers)]
