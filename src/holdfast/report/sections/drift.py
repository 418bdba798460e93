"""How far features move along an attack, and how accuracy falls with its steps and restarts."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.analysis.drift import Drift
from holdfast.analysis.strength import Strength
from holdfast.report.analysis import Analysis
from holdfast.report.elements.figures import Plot, Trace, colors, error_bars, figure, marks, scatter
from holdfast.report.elements.format import percent
from holdfast.report.elements.table import UNKNOWN, Cell, Column, RunMeasure, Table, listing, run_table
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, analysis_of
from holdfast.statistics import Estimate

ORDER = 35


def section(study: Study) -> Section | None:
    """Distances along the attack, accuracy along its steps and restarts, and a table of where features end."""
    groups = study.analyzed()
    if not groups:
        return None
    first = analysis_of(next(iter(groups.values()))[0])
    note = (
        f"{len(first.followed)} samples are followed along {first.facts['path']['attack']}. Distances are cosine "
        "distances of features; class means are those of training samples.",
    )
    return Section(
        id="drift",
        title="Along the attack",
        sentences=note,
        tables=[_table(study, groups), _toward(study, groups)],
        plots=[_distances(study), *_strengths(study)],
    )


def _table(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    measures: list[tuple[Column, RunMeasure]] = [
        (Column("Distance moved", "low is good"), lambda run: _drift(run).moved[-1]),
        (Column("To the true class mean", "before"), lambda run: _drift(run).true[0]),
        (Column("To the true class mean", "after; low is good"), lambda run: _drift(run).true[-1]),
        (Column("To the nearest false mean", "after; high is good"), lambda run: _drift(run).false[-1]),
        (Column("Nearest to the true mean, %", "before"), lambda run: _drift(run).home[0]),
        (Column("Nearest to the true mean, %", "after; high is good"), lambda run: _drift(run).home[-1]),
    ]
    return run_table(groups, measures, colors(study.titles), size=lambda run: len(analysis_of(run).followed))


def _toward(study: Study, groups: Mapping[str, Sequence[Run]]) -> Table:
    """Where the samples of each class end, for the first seed of each model."""
    titles = ("Method", "Class", "Samples", "End nearest to the true mean, %", "Most others end nearest to", "%")
    rows = [row for name, runs in groups.items() for row in _ends(name, _drift(runs[0]))]
    caption = f"Toward which class the samples of each class move{study.first_seed and ', first seed'}"
    return listing(titles, rows, caption, folded=True)


def _ends(name: str, found: Drift) -> Iterator[list[str]]:
    for k, ends in found.toward().items():
        n = sum(ends.values())
        other = next((j for j in ends if j != k), None)
        where = (UNKNOWN, UNKNOWN) if other is None else (f"class {other}", percent(ends[other] / n))
        yield [name, str(k), str(n), percent(ends.get(k, 0) / n), *where]


def _drift(run: Run) -> Drift:
    return analysis_of(run).drift


def _distances(study: Study) -> Plot:
    """The distance to the true and to the nearest false class mean, step by step, for the first seed of each model."""
    looks, traces = marks(study.titles), []
    kinds: dict[str, Callable[[Drift], tuple[Estimate, ...]]] = {
        "true class": lambda found: found.true,
        "false class": lambda found: found.false,
    }
    for name, runs in study.analyzed().items():
        found = analysis_of(runs[0])
        for (kind, of), dash in zip(kinds.items(), ("solid", "dot"), strict=True):
            line = {"color": looks[name].color, "dash": dash, "width": 2}
            values = [round(step.value, 5) for step in of(found.drift)]
            traces.append(scatter(f"{name}, {kind}", found.steps, values, "lines") | {"line": line})
    caption = (
        "The mean distance of the features to the mean of their true class (solid), and to the nearest mean of another "
        "one (dotted). Good is a solid line that stays low, below the dotted one of the same color; where they cross, "
        f"samples are on average nearer to a false class.{study.first_seed}"
    )
    alt = f"Line chart of distances to class means along the attack for {', '.join(study.analyzed())}"
    layout = _layout("step of the attack", "cosine distance")
    return Plot("Distance to class means along the attack", alt, figure(traces, layout), wide=True, caption=caption)


def _strengths(study: Study) -> list[Plot]:
    kinds: list[tuple[str, str, Callable[[Analysis], Strength]]] = [
        ("steps", "Good is a line that is flat at the end: more steps would not find more.", lambda a: a.along_steps),
        (
            "restarts",
            "0 is no attack. Good is a line that is flat after the first restart.",
            lambda a: a.along_restarts,
        ),
    ]
    return [_strength(study, *kind) for kind in kinds]


def _strength(study: Study, what: str, good: str, of: Callable[[Analysis], Strength]) -> Plot:
    """Accuracy against the strength of the attack."""
    looks, traces = marks(study.titles), []
    for name, runs in study.analyzed().items():
        found = of(analysis_of(runs[0]))
        cells = [Cell((share,)) for share in found.accuracy]
        traces.append(
            scatter(name, found.at, [100 * cell.mean for cell in cells])
            | {"error_y": error_bars(cells), "line": {"color": looks[name].color, "width": 2}}
            | {"marker": {"color": looks[name].color, "symbol": looks[name].symbol, "size": 6}}
        )
    layout = _layout(f"{what} of the attack", "correct (%)")
    layout["yaxis"]["range"] = [-2, 102]
    alt = f"Line chart of accuracy against the {what} of the attack for {', '.join(study.analyzed())}"
    caption = f"{good} Bars span the 95 % intervals.{study.first_seed}"
    return Plot(f"Accuracy against the {what} of the attack", alt, figure(traces, layout), caption=caption)


def _layout(x: str, y: str) -> Trace:
    return {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.2},
        "height": 400,
    }
