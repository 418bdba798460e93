"""Certified and empirical robust error: what is proved of a classifier, what an attack shows, and what lies between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.records.records import Array, Mask, Records
from holdfast.report.study import Run
from holdfast.report.summary import check_same_samples
from holdfast.report.table import Cell, Column, Table, eps_text, tabulated
from holdfast.report.text import cell_text, markdown_table, plain
from holdfast.statistics import Share

_POINTS = 300


def bounds_of(records: Records) -> tuple[str, Array, Array]:
    """The norm of a certificate with its columns: the radius no attack can enter, and the shortest verified attack."""
    found = [name for name in records.columns if name.startswith("radius:")]
    if len(found) != 1:
        raise ValueError(f"records hold {len(found)} columns of radii but a certificate has one; certify again")
    rest = found[0].removeprefix("radius:")
    return rest.partition(":")[0], records.columns[found[0]], records.columns[f"upper:{rest}"]


def certified(records: Records, radius: float) -> Mask:
    """Which samples are classified right, provably also after every perturbation of at most this length."""
    _, proved, _ = bounds_of(records)
    return np.asarray(records.right & ((proved > radius) | (radius == 0)))


def standing(records: Records, radius: float) -> Mask:
    """Which samples are classified right and have no verified example within this length."""
    _, _, upper = bounds_of(records)
    return np.asarray(records.right & ((upper > radius) | (radius == 0)))


def certified_error(records: Records, radius: float) -> Share:
    """The share not proved to hold: never below the true robust error."""
    return Share.of(~certified(records, radius))


def empirical_error(records: Records, radius: float) -> Share:
    """The share that an attack was seen to break: never above the true robust error."""
    return Share.of(~standing(records, radius))


@dataclass(frozen=True, kw_only=True)
class Certified:
    """One classifier, such as 'K = 1', under several metrics; runs of one name differ in their seed."""

    title: str
    runs: Sequence[Run]

    def by_name(self) -> dict[str, list[Run]]:
        """The runs of each metric, seeds ascending."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.name, []).append(run)
        return {name: sorted(runs, key=lambda run: run.seed) for name, runs in groups.items()}

    def table(self, radii: Sequence[float]) -> Table:
        """Clean error, then certified and empirical error at every radius."""
        columns = [Column("Clean error", "", lambda records: empirical_error(records, 0.0))]
        for radius in radii:
            columns.append(Column(f"Certified {eps_text(radius)}", "", _at(certified_error, radius)))
            columns.append(Column(f"Empirical {eps_text(radius)}", "", _at(empirical_error, radius)))
        return tabulated(self.by_name(), columns)

    def grid(self) -> list[float]:
        """Radii for a full curve: up to the last at which an attack still gains, dense enough for a screen."""
        ends = np.concatenate([np.concatenate(bounds_of(run.records)[1:]) for run in self.runs])
        ends = np.unique(ends[np.isfinite(ends)])
        if len(ends) > _POINTS:
            ends = np.quantile(ends, np.linspace(0, 1, _POINTS))
        return sorted({0.0, *ends.tolist()})


def _at(error: Callable[[Records, float], Share], radius: float) -> Callable[[Records], Share]:
    return lambda records: error(records, radius)


@dataclass(frozen=True, kw_only=True)
class CertifiedStudy:
    """What one page of certificates is about; all its radii are of one norm and all its samples the same."""

    name: str
    title: str
    description: str
    classifiers: Sequence[Certified]
    radii: Sequence[float]
    recipe: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runs = self.runs()
        if not runs:
            raise ValueError(f"the study {self.name!r} has no certificates to report; certify at least one metric")
        norms = sorted({bounds_of(run.records)[0] for run in runs})
        if len(norms) > 1:
            raise ValueError(f"{' and '.join(norms)} radii cannot stand beside each other; report each norm by itself")
        for run in runs[1:]:
            check_same_samples(runs[0].records, run.records)

    def runs(self) -> list[Run]:
        """Every run of every classifier."""
        return [run for classifier in self.classifiers for run in classifier.runs]

    @property
    def norm(self) -> str:
        """The norm of all radii."""
        return bounds_of(self.runs()[0].records)[0]

    def notes(self) -> list[str]:
        """What learners said while they were fitted, each with its runs."""
        said: dict[str, list[str]] = {}
        for run in self.runs():
            for words in run.records.facts.get("training", {}).get("warnings", []):
                said.setdefault(words, []).append(f"{run.name} (seed {run.seed})")
        return [f"{words}: {', '.join(dict.fromkeys(who))}" for words, who in said.items()]

    def words(self) -> list[str]:
        """For each classifier, who has the lowest certified error at each radius, with every mean."""
        return [_lowest(one, radius, self.norm) for one in self.classifiers for radius in self.radii]


def _lowest(classifier: Certified, radius: float, norm: str) -> str:
    cells = {
        name: Cell(tuple(certified_error(run.records, radius) for run in runs))
        for name, runs in classifier.by_name().items()
    }
    order = sorted(cells, key=lambda name: spread_mean(cells[name]))
    told = ", ".join(f"{name} {cell_text(cells[name])}" for name in order)
    return f"{classifier.title}, {norm} radius {eps_text(radius)}, certified error from the lowest: {told}."


def spread_mean(cell: Cell) -> float:
    """The mean over seeds, nan where there is none."""
    return cell.spread.mean if cell.spread else float("nan")


def text_certified(study: CertifiedStudy) -> str:
    """The tables as Markdown that also reads well in a terminal."""
    parts = [f"{one.title}\n\n{markdown_table(one.table(study.radii))}" for one in study.classifiers]
    note = (
        f"Per cent of samples, {study.norm} radii: mean ± standard deviation over seeds [95 % Wilson interval, widest "
        "over seeds]. The true robust error lies between the empirical and the certified one."
    )
    return "\n\n".join([*parts, note, *(plain(f"Note: {words}.") for words in study.notes())]) + "\n"
