"""Methods against attacks: one row per name, one cell per attack, every seed kept beside the mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.records.records import Records
from holdfast.report.study import Run, Study
from holdfast.report.summary import against, worst
from holdfast.statistics import Share, Spread, spread


@dataclass(frozen=True)
class Column:
    """What is asked of each model; ``share`` is None where a model was not asked."""

    title: str
    note: str
    share: Callable[[Records], Share | None]


@dataclass(frozen=True)
class Cell:
    """One share per seed (None where it was not measured), and their mean and spread."""

    shares: tuple[Share | None, ...]

    @property
    def known(self) -> list[Share]:
        """The shares that were measured."""
        return [share for share in self.shares if share is not None and share.n]

    @property
    def spread(self) -> Spread | None:
        """Mean and spread over the seeds, None where nothing was measured."""
        return spread([share.value for share in self.known]) if self.known else None

    @property
    def low(self) -> float:
        """The lowest end of the seeds' intervals: the seeds share their samples, so pooling them would be too sure."""
        return min(share.low for share in self.known)

    @property
    def high(self) -> float:
        """The highest end of the seeds' intervals."""
        return max(share.high for share in self.known)


@dataclass(frozen=True)
class Row:
    """One name: its seeds and its cells, in the order of the columns."""

    name: str
    seeds: tuple[int, ...]
    n: tuple[int, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Names against columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


WORST = 1
"""Where the worst case stands in the main table, after the clean column."""


def main_table(study: Study) -> Table:
    """Clean accuracy, the worst case at the stated eps, and every attack that speaks for it."""
    here = {name: a for name, a in study.attacks().items() if a.norm == study.norm and a.speaks_for(study.eps)}
    attacked = [Column(name, "minimal" if a.minimal else "", _under(name, study.eps)) for name, a in here.items()]
    # the worst case stands second: with many attacks a wide table scrolls, and this is the number to read
    return tabulated(study.by_name(), [Column("Clean", "no attack", _clean), worst_column(study), *attacked])


def other_table(study: Study) -> Table | None:
    """Attacks at another norm or eps, each at its own; None where there are none."""
    others = {
        name: attack
        for name, attack in study.attacks().items()
        if math.isfinite(attack.eps) and not (attack.norm == study.norm and attack.speaks_for(study.eps))
    }
    columns = [Column(name, f"{a.norm} {eps_text(a.eps)}", _under(name, a.eps)) for name, a in others.items()]
    return tabulated(study.by_name(), columns) if columns else None


def worst_column(study: Study) -> Column:
    """The worst case per sample at the stated eps; it is only a bound where some run was not attacked there."""
    measured = all(run.records.measured(study.eps, study.norm) for run in study.runs)
    note = f"over all {study.norm} attacks" if measured else "upper bound: not attacked at this eps"
    return Column("Worst case", note, lambda records: worst(records, study.norm, study.eps))


def eps_text(eps: float) -> str:
    """An eps as people write it: 8/255 for a whole number of grey levels, else the decimal number."""
    levels = eps * 255
    if len(f"{eps!r}") > 6 and 0 < levels < 256 and abs(levels - round(levels)) < 1e-9:
        return f"{round(levels)}/255"
    return f"{eps:g}"


def _clean(records: Records) -> Share:
    return Share.of(records.right)


def _under(name: str, eps: float) -> Callable[[Records], Share | None]:
    return lambda records: against(records, name, eps) if name in records.attacks else None


def tabulated(runs: Mapping[str, Sequence[Run]], columns: Sequence[Column]) -> Table:
    """The runs of each name against these columns."""
    return Table(tuple(columns), tuple(_row(name, group, columns) for name, group in runs.items()))


def _row(name: str, runs: Sequence[Run], columns: Sequence[Column]) -> Row:
    cells = tuple(Cell(tuple(column.share(run.records) for run in runs)) for column in columns)
    return Row(name, tuple(run.seed for run in runs), tuple(len(run.records) for run in runs), cells)
