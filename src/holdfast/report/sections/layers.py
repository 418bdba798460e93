"""r, r', nearest neighbors and detection in further layers."""

from collections.abc import Callable, Mapping, Sequence

from holdfast.report.analysis import Layer, Under
from holdfast.report.elements.figures import colors
from holdfast.report.elements.table import Column, RunMeasure, Table, run_table
from holdfast.report.page import Section
from holdfast.report.ratios import common_classes
from holdfast.report.study import Run, Study, analysis_of
from holdfast.statistics import Estimate, Share

ORDER = 39

_NOTE = (
    "What Features under attack and Detection say of the features, here of other layers, each with a detector of its "
    "own. Good is as there: r high, r' low, nearest neighbors that stay equal, AUC near 1. The attack does not know "
    "the detectors."
)


def section(study: Study) -> Section | None:
    """A table for each layer and attack; None if no further layers were measured."""
    groups = study.analyzed()
    runs = [run for same in groups.values() for run in same]
    if not runs or not analysis_of(runs[0]).under[-1].layers:
        return None
    tables = [
        _table(study, groups, level, layer)
        for level, under in enumerate(analysis_of(runs[0]).under)
        for layer in under.layers
    ]
    return Section(id="layers", title="Other layers", sentences=[_NOTE], tables=tables, in_text=True)


def _table(study: Study, groups: Mapping[str, Sequence[Run]], level: int, layer: str) -> Table:
    first = analysis_of(next(iter(groups.values()))[0]).under[level]
    k, classes = first.of.facts["k"][0], common_classes([run for runs in groups.values() for run in runs], level)
    fields: dict[Column, Callable[[Layer], Estimate | Share | None]] = {
        Column("r", "high is good"): lambda one: None if one.ratios is None else one.ratios.r.over(classes),
        Column("r'", "low is good"): lambda one: None if one.ratios is None else one.ratios.r_prime.average,
        Column(f"{k}-NN, %", "no attack"): lambda one: one.neighbors_clean.accuracy[0],
        Column(f"{k}-NN, %", "attacked"): lambda one: one.neighbors.accuracy[0],
        Column("AUC", "of detection"): lambda one: one.detection.auc,
    }
    measures = [(column, _of(field, level, layer)) for column, field in fields.items()]
    caption = f"Layer {layer} under {first.name}"
    return run_table(groups, measures, colors(study.titles), caption, lambda run: len(analysis_of(run).samples))


def _of(field: Callable[[Layer], Estimate | Share | None], level: int, layer: str) -> RunMeasure:
    def measure(run: Run) -> Estimate | Share | None:
        under: Under = analysis_of(run).under[level]
        return field(under.layers[layer])

    return measure
