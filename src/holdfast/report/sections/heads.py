"""What the last layer does with features: lengths, angles, and the share of the gradient that easy samples hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.analysis.head import Head
from holdfast.report.elements.figures import colors
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
    each = listing(titles, _classes(groups), "Each class, first seed", folded=True)
    return Section(id="heads", title="Last layer", sentences=_NOTE, tables=[_table(study, groups), each], in_text=True)


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
