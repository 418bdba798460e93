"""What features do under attack: the ratios r and r', and nearest neighbors among training samples."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import fmean

from holdfast.report.elements.figures import colors
from holdfast.report.elements.format import listed
from holdfast.report.elements.table import UNKNOWN, Column, RunMeasure, Table, listing, run_table
from holdfast.report.page import Section
from holdfast.report.ratios import common_classes, difference, ratio, separated
from holdfast.report.study import Run, Study, analysis_of, by_title
from holdfast.statistics import Estimate, Share

ORDER = 32

_NOTE = (
    "r: the mean cosine distance of adversarial examples to the samples of the class they are mistaken for, over the "
    "mean distance within that class; high is good. r': the same for the class they come from; low is good (Mao et al. "
    "2019, Tables 2 and 3).",
    "Both say where features end, not how many samples hold: read them beside the accuracy under the same attack. A "
    "model with narrow classes, whose distance within a class is small, can have a high r even where adversarial "
    "examples lie close to the false class.",
    "Nearest neighbors vote among training samples, by cosine distance; good is equal with and without attack (Table "
    "4).",
    "Every sample is attacked with all steps. Brackets are 95 % intervals: bootstrap over samples for r and r', Wilson "
    "for percentages.",
)
_KINDS = ("r", "r_prime")


def section(study: Study) -> Section | None:
    """Two tables, and the paired differences of r and r' folded below them."""
    groups = study.analyzed()
    if not groups:
        return None
    compared = _differences(study)
    return Section(
        id="features",
        title="Features under attack",
        sentences=[*_NOTE, *_skipped(study)],
        tables=[_ratios(study, groups), _neighbors(study, groups), *([compared] if compared else [])],
        findings=list(_narrow(groups)),
        warnings=list(_without_ratio(study)),
        in_text=True,
    )


def _analyzed(study: Study) -> list[Run]:
    return [run for run in study.runs if run.analysis is not None]


def _levels(study: Study) -> Mapping[int, str]:
    """The attacks by their position; all models of a study have the same."""
    first = analysis_of(_analyzed(study)[0])
    return {number: one.name for number, one in enumerate(first.under)}


def _ratios(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    measures: list[tuple[Column, RunMeasure]] = []
    for level, name in _levels(study).items():
        classes = common_classes(_analyzed(study), level)
        measures.append((Column("Accuracy, %", name), partial(_accuracy, level=level)))
        measures.append((Column("r", f"{name}; high is good"), partial(_r, level=level, classes=classes)))
        measures.append((Column("r'", f"{name}; low is good"), partial(_r_prime, level=level)))
    measures.append((Column("Distance within a class", "no attack"), _within))
    return run_table(groups, measures, colors(study.titles), "Ratios of distances", _size)


def _accuracy(run: Run, level: int) -> Share:
    return analysis_of(run).under[level].accuracy


def _within(run: Run) -> Estimate | None:
    found = separated(run, 0)
    return None if found is None else found.within


def _r(run: Run, level: int, classes: Sequence[int]) -> Estimate | None:
    found = ratio(run, level, "r")
    return None if found is None else found.over(classes)


def _r_prime(run: Run, level: int) -> Estimate | None:
    found = ratio(run, level, "r_prime")
    return None if found is None else found.average


def _narrow(groups: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Why the model with the lowest accuracy has the largest r, where that is so."""
    every = [run for runs in groups.values() for run in runs]
    if len(groups) < 2 or any(separated(run, -1) is None for run in every):
        return
    classes = common_classes(every, -1)
    r = {title: _mean(partial(_r, level=-1, classes=classes), runs) for title, runs in groups.items()}
    accuracy = {title: _mean(partial(_accuracy, level=-1), runs) for title, runs in groups.items()}
    within = {title: _mean(_within, runs) for title, runs in groups.items()}
    weakest = min(accuracy, key=lambda title: accuracy[title])
    if classes and weakest == max(r, key=lambda title: r[title]) == min(within, key=lambda title: within[title]):
        others = sorted(value for title, value in within.items() if title != weakest)
        span = " to ".join(dict.fromkeys(f"{value:.3f}" for value in (others[0], others[-1])))
        yield (
            f"{weakest} has the largest r although it has the lowest accuracy, because its classes are narrow: the "
            f"mean distance within a class is {within[weakest]:.3f}, that of the other models {span}."
        )


def _mean(measure: RunMeasure, runs: Sequence[Run]) -> float:
    found = [measure(run) for run in runs]
    return fmean(one.value for one in found if one is not None)


def _neighbors(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    measures: list[tuple[Column, RunMeasure]] = []
    for number, k in enumerate(analysis_of(_analyzed(study)[0]).facts["k"]):
        measures.append((Column(f"{k}-NN", "no attack"), partial(_votes, level=None, number=number)))
        for level, name in _levels(study).items():
            measures.append((Column(f"{k}-NN", name), partial(_votes, level=level, number=number)))
    return run_table(groups, measures, colors(study.titles), "Accuracy of nearest neighbors, %", _size)


def _votes(run: Run, level: int | None, number: int) -> Share:
    found = analysis_of(run)
    return (found.neighbors if level is None else found.under[level].neighbors).accuracy[number]


def _size(run: Run) -> int:
    return len(analysis_of(run).samples)


def _skipped(study: Study) -> Iterator[str]:
    """How many classes r is averaged over, where it is not all."""
    runs = _analyzed(study)
    for level, name in _levels(study).items():
        known = [found for run in runs if (found := ratio(run, level, "r")) is not None]
        common, classes = len(common_classes(runs, level)), len(known[0].classes) if known else 0
        if common < classes:
            yield (
                f"Under {name} r is the mean over the {common} of {classes} classes into which samples of every model "
                "were misclassified."
            )


def _without_ratio(study: Study) -> Iterator[str]:
    lacking = [run.label for run in _analyzed(study) if ratio(run, 0, "r") is None]
    if lacking:
        yield f"{listed(lacking)}: the features of a class all have one direction, so r and r' are not defined."


def _differences(study: Study) -> Table | None:
    """The differences of all pairs of models at each seed and level, whose bootstrap draws are paired."""
    titles = ("First", "Second", "Seed", "Attack", "r of first minus second", "r' of first minus second")
    rows = [row for pair in combinations(by_title(_analyzed(study)).values(), 2) for row in _pair(study, *pair)]
    caption = f"Differences of r and r' ({len(rows)}), paired by sample"
    return listing(titles, rows, caption, words=("Second", "Attack"), folded=True) if rows else None


def _pair(study: Study, first: Sequence[Run], second: Sequence[Run]) -> Iterator[list[str]]:
    partners = {run.seed: run for run in second}
    for run in first:
        if run.seed not in partners:
            continue
        for level, name in _levels(study).items():
            each = [difference(run, partners[run.seed], level, kind) for kind in _KINDS]
            yield [run.title, second[0].title, str(run.seed), name, *map(_text, each)]


def _text(found: Estimate | None) -> str:
    return UNKNOWN if found is None or found.value != found.value else str(found)
