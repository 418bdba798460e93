"""The same numbers in words and as plain text, for the terminal, for documents and for the head of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.report.study import Run, Study
from holdfast.report.summary import Comparison, compare
from holdfast.report.table import WORST, Cell, Row, Table, eps_text, main_table, other_table
from holdfast.statistics import Share


def percent(value: float) -> str:
    """A share in per cent, one decimal."""
    return f"{100 * value:.1f}"


def p_text(p: float) -> str:
    """A p value; very small ones only as a bound."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def seeds_text(n: int) -> str:
    """How many seeds, in words that warn when it is one."""
    return "one seed" if n == 1 else f"{n} seeds"


def cell_text(cell: Cell) -> str:
    """A cell in one line: mean, deviation over seeds where there are several, and the interval."""
    if cell.spread is None:
        return "-"
    std = "" if cell.spread.std is None else f" ± {percent(cell.spread.std)}"
    return f"{percent(cell.spread.mean)}{std} [{percent(cell.low)}, {percent(cell.high)}]"


def share_text(share: Share | None) -> str:
    """One seed's share in one line with its interval."""
    return cell_text(Cell((share,)))


def plain(name: str) -> str:
    """A name safe for a terminal and for a cell of a Markdown table."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name).replace("|", "\\|")


def headline(study: Study) -> list[str]:
    """What the numbers say, in careful sentences."""
    table = main_table(study)
    best_first = sorted(table.rows, key=lambda row: -_mean(row))
    return [_who_holds(study, best_first), *_differences(study, best_first), *_caution(table)]


def comparisons(study: Study) -> tuple[list[Comparison], str]:
    """The paired comparisons, or none and the sentence that says why they are refused."""
    try:
        return compare(study), ""
    except ValueError as refusal:
        return [], f"{refusal}."


def warnings(study: Study) -> list[str]:
    """What a reader must know before trusting the numbers."""
    return [*_outside(study), *_not_attacked(study)]


def _outside(study: Study) -> Iterator[str]:
    for name in study.attacks():
        runs = [run for run in study.runs if name in run.records.attacks and run.records.attacks[name].outside]
        counts = [f"{run.records.attacks[name].outside} of {len(run.records)} for {_who(run)}" for run in runs]
        if counts:
            yield f"{name} returned points outside the threat, which earned nothing: {_listed(counts)}."


def _not_attacked(study: Study) -> Iterator[str]:
    for name in study.attacks():
        runs = [_who(run) for run in study.runs if name not in run.records.attacks]
        if runs:
            yield f"{name} was not run against {_listed(runs)}, so their worst case is over fewer attacks."
    runs = [_who(run) for run in study.runs if not run.records.measured(study.eps, study.norm)]
    if runs:
        where = f"{study.norm} eps {eps_text(study.eps)}"
        yield f"At {where} nothing was run against {_listed(runs)}, so the worst case is an upper bound."


def _who(run: Run) -> str:
    return f"{run.name} (seed {run.seed})"


def text_table(study: Study) -> str:
    """The numbers of the page as Markdown that also reads well in a terminal."""
    parts = [markdown_table(main_table(study))]
    other = other_table(study)
    if other:
        parts += ["Attacks at another norm or eps, each at its own:", markdown_table(other)]
    note = "Per cent that hold: mean ± standard deviation over seeds [95 % Wilson interval, widest over seeds]."
    words = [" ".join(headline(study)), *(f"Warning: {warning}" for warning in warnings(study))]
    return "\n\n".join([*parts, note, *map(plain, words)]) + "\n"


def _mean(row: Row) -> float:
    found = row.cells[WORST].spread
    return found.mean if found else -1.0


def _who_holds(study: Study, rows: Sequence[Row]) -> str:
    attacks = sum(a.norm == study.norm and a.speaks_for(study.eps) for a in study.attacks().values())
    bound = not all(run.records.measured(study.eps, study.norm) for run in study.runs)
    scope = f"worst case over {attacks} attack{'s' * (attacks != 1)}"
    counts = sorted({n for row in rows for n in row.n})
    samples = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    who = ", ".join(f"{row.name} holds {'at most ' * bound}{_holds(row)}" for row in rows)
    return f"At {study.norm} eps {eps_text(study.eps)}, {scope}, on {samples} samples: {who}."


def _holds(row: Row) -> str:
    cell = row.cells[WORST]
    if cell.spread is None:
        return "nothing that was measured"
    seeds = seeds_text(cell.spread.n)
    if cell.spread.std is not None:
        seeds = f"mean of {seeds}, standard deviation {percent(cell.spread.std)} points"
    return f"{percent(cell.spread.mean)} % (95 % interval {percent(cell.low)} to {percent(cell.high)}; {seeds})"


def _differences(study: Study, rows: Sequence[Row]) -> list[str]:
    found, refusal = comparisons(study)
    if refusal:
        return [f"No paired test: {refusal}"]
    best = rows[0].name
    verdicts: dict[str, list[str]] = {}
    for row in rows[1:]:
        verdicts.setdefault(_verdict(best, row.name, found), []).append(row.name)
    return [f"{best} {verdict.format(_listed(names))}." for verdict, names in verdicts.items()]


def _verdict(best: str, other: str, found: Sequence[Comparison]) -> str:
    leads = {c.lead if c.first == best else -c.lead for c in found if {c.first, c.second} == {best, other}}
    if not leads:
        return "shares no seed with {}, so no paired test was made"
    if leads == {1}:
        return "holds significantly more of the same samples than {} (exact McNemar test, 5 % level after Holm)"
    if leads == {0}:
        return "does not differ significantly from {}"
    return "differs significantly from {} at some seeds only"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _caution(table: Table) -> list[str]:
    if len(table.rows) < 2:
        return []
    tail = "The tests speak of these trained models on these samples"
    if any(len(row.seeds) == 1 for row in table.rows):
        return [f"{tail}; one seed does not show how much a retrained model would differ."]
    return [f"{tail}; the deviation over seeds shows how much a retrained model may differ."]


def markdown_table(table: Table) -> str:
    """A table as Markdown that also reads well in a terminal."""
    head = ["Method", *(f"{c.title} ({c.note})" if c.note else c.title for c in table.columns), "n", "Seeds"]
    body = [
        [row.name, *map(cell_text, row.cells), "/".join(map(str, dict.fromkeys(row.n))), ", ".join(map(str, row.seeds))]
        for row in table.rows
    ]
    lines = [[plain(text) for text in line] for line in [head, *body]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
