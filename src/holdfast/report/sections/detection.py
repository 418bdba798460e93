"""Detection of misclassified samples by class densities, under attacks that do and do not know the detector."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from holdfast.analysis.detection import Detection, Rejection
from holdfast.report.analysis import Under
from holdfast.report.elements.figures import Mark, Plot, Trace, colors, figure, marks, scatter
from holdfast.report.elements.format import listed, percent
from holdfast.report.elements.table import Column, RunMeasure, Table, run_table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, analysis_of
from holdfast.statistics import Estimate, Share

ORDER = 36

_NOTE = (
    "The detector has one Gaussian per class, fitted to the features of training samples; its confidence is the "
    "largest class density (Zheng and Hong 2018). It should give misclassified samples, natural and adversarial "
    "together, a lower confidence than others (Mao et al. 2019, Figure 5).",
    "AUC: 1 is perfect, 0.5 is chance, below it misclassified samples look more natural than others. TPR: the share of "
    "misclassified samples detected when 1 % or 5 % of the others are rejected.",
    "The aware attack is misclassified first and then raises the confidence. A detector judged only by an attack that "
    "does not know it is no detector.",
)
_KINDS: Mapping[str, Callable[[Under], Detection]] = {
    "PGD": lambda under: under.detection,
    "aware attack": lambda under: under.detection_aware,
}
_DASHES = {"PGD": "solid", "aware attack": "dot"}


def section(study: Study) -> Section | None:
    """For each attack a table of detection with its curves, and accuracy with rejection at a fixed threshold."""
    groups = study.analyzed()
    if not groups:
        return None
    runs = [run for same in groups.values() for run in same]
    levels = range(len(analysis_of(runs[0]).under))
    tables = [_table(study, groups, level) for level in levels]
    if _under(runs[0], -1).rejection is not None:
        tables.append(_rejecting(study, groups, levels))
    return Section(
        id="detection",
        title="Detection",
        sentences=[*_NOTE, *_threshold(runs)],
        tables=tables,
        plots=[plot for level in levels for plot in (*_roc(study, level), *_accepted(study, level))],
        findings=list(_broken(runs)),
        in_text=True,
    )


def _under(run: Run, level: int) -> Under:
    return analysis_of(run).under[level]


def _table(study: Study, groups: Mapping[str, Sequence[Run]], level: int) -> Table:
    measures: list[tuple[Column, RunMeasure]] = []
    for kind, found in _KINDS.items():
        measures.append((Column("AUC", kind), partial(_auc, level=level, found=found)))
        for rate in (0.01, 0.05):
            column = Column("TPR", f"{kind}, FPR {100 * rate:g} %")
            measures.append((column, partial(_detected, level=level, found=found, rate=rate)))
    name = next(iter(groups.values()))[0]
    caption = f"Detection under {_under(name, level).name}"
    return run_table(groups, measures, colors(study.titles), caption, _size)


def _auc(run: Run, level: int, found: Callable[[Under], Detection]) -> Estimate:
    return found(_under(run, level)).auc


def _detected(run: Run, level: int, found: Callable[[Under], Detection], rate: float) -> Estimate:
    return found(_under(run, level)).at[rate]


def _size(run: Run) -> int:
    return len(analysis_of(run).samples)


def _rejecting(study: Study, groups: Mapping[str, Sequence[Run]], levels: Sequence[int]) -> Table:
    """Accuracy without and with rejection, natural and under the aware attacks."""
    runs = next(iter(groups.values()))
    natural: dict[str, Callable[[Rejection], Share]] = {
        "with rejection": lambda it: it.natural,
        "rejected": lambda it: it.rejected,
    }
    measures: list[tuple[Column, RunMeasure]] = [(Column("Natural", "without rejection"), _clean)]
    measures += [(Column("Natural", note), partial(_rejection, level=0, of=of)) for note, of in natural.items()]
    for level in levels:
        name = _under(runs[0], level).name
        bare, rejecting = (Column("Aware attack", f"{name}, {kind} rejection") for kind in ("without", "with"))
        measures.append((bare, partial(_robust, level=level)))
        measures.append((rejecting, partial(_rejection, level=level, of=_adversarial)))
    return run_table(groups, measures, colors(study.titles), "Accuracy in % with rejection", _size)


def _clean(run: Run) -> Share:
    return analysis_of(run).clean


def _robust(run: Run, level: int) -> Share:
    return _under(run, level).accuracy_aware


def _adversarial(found: Rejection) -> Share:
    return found.adversarial


def _rejection(run: Run, level: int, of: Callable[[Rejection], Share]) -> Share | None:
    found = _under(run, level).rejection
    return None if found is None else of(found)


def _threshold(runs: Sequence[Run]) -> Iterator[str]:
    rates = {analysis_of(run).facts["fpr"] for run in runs if analysis_of(run).facts["threshold"] is not None}
    for rate in sorted(rates):
        yield (
            f"With rejection the model abstains below a threshold that rejects {percent(rate)} % of the validation "
            "samples that are classified correctly. An abstention is an error on natural samples and a success of the "
            "defense on adversarial ones."
        )


def _broken(runs: Sequence[Run]) -> Iterator[str]:
    """Which models have a detector that is no better than chance once the attack knows it."""
    found = [run.label for run in runs if _shown(_under(run, -1).detection_aware)]
    chance = [run.label for run in runs if _under(run, -1).detection_aware.auc.low <= 0.5 and run.label in found]
    if chance:
        name = _under(runs[0], -1).name
        yield f"Under {name} the detector is at chance, or below, once the attack knows it, for {listed(chance)}."


def _shown(found: Detection) -> bool:
    """False where no sample, or every one, is misclassified, so that there is nothing to tell apart."""
    return 0 < found.wrong < found.n


def _curves(study: Study, level: int, x: str, y: str) -> Iterator[Trace]:
    """A curve of the first seed of each model and kind of attack."""
    looks: Mapping[str, Mark] = marks(study.titles)
    for name, runs in study.analyzed().items():
        for kind, of in _KINDS.items():
            found = of(_under(runs[0], level))
            if _shown(found):
                line = {"color": looks[name].color, "dash": _DASHES[kind], "width": 2}
                along, up = ([round(value, 4) for value in getattr(found, axis).tolist()] for axis in (x, y))
                yield scatter(f"{name}, {kind}", along, up, "lines") | {"line": line}


def _roc(study: Study, level: int) -> list[Plot]:
    traces = list(_curves(study, level, "fpr", "tpr"))
    if not traces:
        return []
    chance = scatter("chance", [0, 1], [0, 1], "lines") | {"line": {"color": "#7a8794", "width": 1}}
    layout = _layout("others rejected", "misclassified samples rejected")
    caption = (
        "Good is a curve in the upper left corner, also for the dotted one: that attack knows the detector. The gray "
        f"diagonal is chance.{study.first_seed}"
    )
    title = f"ROC of detection under {_under(next(iter(study.analyzed().values()))[0], level).name}"
    alt = f"{title}, curves of the detection of misclassified samples for {', '.join(study.analyzed())}"
    return [Plot(title, alt, figure([*traces, chance], layout), caption=caption)]


def _accepted(study: Study, level: int) -> list[Plot]:
    traces = list(_curves(study, level, "accepted", "accuracy"))
    if not traces:
        return []
    caption = (
        "Accuracy on the samples with the largest confidence, natural and adversarial together. Good is a curve that "
        f"rises to 1 soon from right to left, also the dotted one.{study.first_seed}"
    )
    title = f"Accuracy with rejection under {_under(next(iter(study.analyzed().values()))[0], level).name}"
    alt = f"{title}, against the share of accepted samples for {', '.join(study.analyzed())}"
    return [Plot(title, alt, figure(traces, _layout("accepted samples", "accuracy")), caption=caption)]


def _layout(x: str, y: str) -> Trace:
    axes = {name: {"title": {"text": text}, "range": [-0.02, 1.02]} for name, text in (("xaxis", x), ("yaxis", y))}
    return axes | {"legend": {"orientation": "h", "y": -0.25}, "height": 420}
