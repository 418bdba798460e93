"""Tables: the same rows and columns for the page, the terminal and Markdown documents."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.records.records import Records
from holdfast.report.elements.format import percent, plain, seeds_text
from holdfast.report.study import Run
from holdfast.statistics import Estimate, Share, Spread, spread

UNKNOWN = "-"


@dataclass(frozen=True)
class Cell:
    """One share per seed (None where it was not measured), with their mean and spread; or one estimate per seed, which
    is no percentage."""

    shares: tuple[Share | Estimate | None, ...]

    @property
    def known(self) -> list[Share | Estimate]:
        return [share for share in self.shares if share is not None and share.n and math.isfinite(share.value)]

    def text(self, value: float) -> str:
        """A number of this kind: a share in percent, an estimate with three decimals."""
        return f"{value:.3f}" if isinstance(self.known[0], Estimate) else percent(value)

    @property
    def spread(self) -> Spread | None:
        """Mean and standard deviation over seeds, None if nothing was measured."""
        return spread([share.value for share in self.known]) if self.known else None

    @property
    def mean(self) -> float:
        """The mean over seeds, nan if nothing was measured."""
        return self.spread.mean if self.spread else math.nan

    @property
    def low(self) -> float:
        """The lowest end of the seeds' intervals: the seeds share their samples, so pooling would be overconfident."""
        return min(share.low for share in self.known)

    @property
    def high(self) -> float:
        return max(share.high for share in self.known)


@dataclass(frozen=True)
class Remark:
    """A short text with a note below it; a ``strong`` one stands out."""

    text: str
    note: str = ""
    strong: bool = False


Entry = str | Cell | Remark
"""What a table holds: plain text, shares with their interval, or a text with a note."""


def entry_text(entry: Entry) -> str:
    """An entry in one line."""
    if isinstance(entry, Cell):
        return cell_text(entry)
    if isinstance(entry, Remark):
        return f"{entry.text} ({entry.note})" if entry.note else entry.text
    return entry


def cell_text(cell: Cell) -> str:
    """A cell in one line: mean, standard deviation over several seeds, and the interval."""
    if cell.spread is None:
        return UNKNOWN
    std = "" if cell.spread.std is None else f" ± {cell.text(cell.spread.std)}"
    return f"{cell.text(cell.mean)}{std} [{cell.text(cell.low)}, {cell.text(cell.high)}]"


def share_text(share: Share | None) -> str:
    """The share of one seed in one line with its interval."""
    return cell_text(Cell((share,)))


@dataclass(frozen=True)
class Column:
    """The head of a column; ``words`` are aligned left and may wrap, ``code`` is set in a fixed width."""

    title: str
    note: str = ""
    kind: Literal["number", "words", "code"] = "number"
    highlighted: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A named row; ``seeds`` are rows that the page folds below it."""

    name: str
    cells: tuple[Entry, ...]
    note: str = ""
    color: str = ""
    seeds: tuple["Row", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows against columns; ``head`` is the title of the row names. The page hides a ``folded`` table at first."""

    head: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    folded: bool = False


def listing(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    *,
    words: Collection[str] = (),
    code: Collection[str] = (),
    folded: bool = False,
) -> Table:
    """A table of plain text with the titles of its columns; the first text of each row is its name."""
    head, *others = titles
    columns = tuple(Column(t, kind="words" if t in words else "code" if t in code else "number") for t in others)
    body = tuple(Row(name=name, cells=tuple(cells)) for name, *cells in rows)
    return Table(head=head, columns=columns, rows=body, caption=caption, folded=folded)


Measure = Callable[[Records], Share | None]
RunMeasure = Callable[[Run], Share | Estimate | None]


def share_table(
    groups: Mapping[str, Sequence[Run]],
    measures: Sequence[tuple[Column, Measure]],
    colors: Mapping[str, str],
    caption: str = "",
) -> Table:
    """One row for each group of runs, with the mean over its seeds and below it each seed."""
    return run_table(groups, [(column, _of_records(measure)) for column, measure in measures], colors, caption)


def _of_records(measure: Measure) -> RunMeasure:
    return lambda run: measure(run.records)


def run_table(
    groups: Mapping[str, Sequence[Run]],
    measures: Sequence[tuple[Column, RunMeasure]],
    colors: Mapping[str, str],
    caption: str = "",
    size: Callable[[Run], int] = lambda run: len(run.records),
) -> Table:
    """The same for measures of whole runs; ``size`` is the number of samples of each."""
    columns, asked = (*(column for column, _ in measures), Column("n")), [measure for _, measure in measures]
    every = [run for runs in groups.values() for run in runs]
    if len(every) == len(groups) and not any(run.trained for run in every):  # seeds say nothing of such models
        rows = [Row(name=name, cells=_cells(runs, asked, size), color=colors[name]) for name, runs in groups.items()]
        return Table(head="Model", columns=columns, rows=tuple(rows), caption=caption)
    rows = [_run_row(name, runs, asked, colors[name], size) for name, runs in groups.items()]
    return Table(head="Method", columns=(*columns, Column("Seeds")), rows=tuple(rows), caption=caption)


def _run_row(
    name: str, runs: Sequence[Run], measures: Sequence[RunMeasure], color: str, size: Callable[[Run], int]
) -> Row:
    each = [_seed_row(run, measures, size) for run in runs] if len(runs) > 1 else []
    return Row(
        name=name,
        cells=(*_cells(runs, measures, size), ", ".join(str(run.seed) for run in runs)),
        note=seeds_text(len(runs)) if each else f"one seed ({runs[0].seed})",
        color=color,
        seeds=tuple(each),
    )


def _seed_row(run: Run, measures: Sequence[RunMeasure], size: Callable[[Run], int]) -> Row:
    return Row(name=f"seed {run.seed}", cells=(*_cells([run], measures, size), str(run.seed)))


def _cells(runs: Sequence[Run], measures: Sequence[RunMeasure], size: Callable[[Run], int]) -> tuple[Entry, ...]:
    """What was measured, and the number of samples."""
    sizes = "/".join(dict.fromkeys(str(size(run)) for run in runs))
    return (*(Cell(tuple(measure(run) for run in runs)) for measure in measures), sizes)


def markdown_table(table: Table) -> str:
    """A table as Markdown that also reads well in a terminal."""
    head = [table.head, *(f"{c.title} ({c.note})" if c.note else c.title for c in table.columns)]
    body = [[row.name, *map(entry_text, row.cells)] for row in table.rows]
    lines = [[plain(text) for text in line] for line in [head, *body]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
