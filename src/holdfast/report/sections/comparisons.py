"""Paired tests between methods on the same samples."""

from collections.abc import Sequence
from statistics import fmean

from holdfast.report.elements.format import p_text, percent
from holdfast.report.elements.table import Column, Entry, Remark, Row, Table, listing
from holdfast.report.page import Section
from holdfast.report.study import Study
from holdfast.report.summary import SIGNIFICANT, Comparison, compared, robust_accuracy

ORDER = 20


def section(study: Study) -> Section | None:
    """A matrix of all pairs of methods and the list of all tests, or the reason why there are none."""
    if study.norm is None or len(study.attacked()) < 2:
        return None
    pairs, refusal = compared(study)
    if not pairs:
        return _section([refusal or "No two methods share a seed."])
    note = (
        "How many percentage points the model of the row is more robust than the model of the column, on the same "
        "samples in the worst case at the stated eps: the mean over the seeds that both have.",
        "Below it the largest p over these seeds, from exact two-sided McNemar tests with Holm's correction for all "
        f"{len(pairs)} tests. Bold: p is below {SIGNIFICANT} at every seed.",
    )
    return _section(note, [matrix(study, pairs), _list(pairs)])


def _section(sentences: Sequence[str], tables: Sequence[Table] = ()) -> Section:
    return Section(id="pairs", title="Paired comparisons", sentences=sentences, tables=tables)


def matrix(study: Study, pairs: Sequence[Comparison]) -> Table:
    """The mean difference and the largest corrected p of each pair, the most robust models first."""
    cells, sizes = robust_accuracy(study), {run.label: len(run.records) for run in study.runs}
    ranked = sorted(cells, key=lambda title: -cells[title].mean)
    of_pair: dict[tuple[str, str], list[tuple[float, Comparison]]] = {}
    for pair in pairs:
        n = sizes[f"{pair.first} (seed {pair.seed})"]
        gain = (pair.only_first - pair.only_second) / max(1, n)
        of_pair.setdefault((pair.first, pair.second), []).append((gain, pair))
        of_pair.setdefault((pair.second, pair.first), []).append((-gain, pair))
    rows = tuple(Row(name=a, cells=tuple(_entry(of_pair.get((a, b), [])) for b in ranked)) for a in ranked)
    return Table(head="More robust than", columns=tuple(Column(title) for title in ranked), rows=rows)


def _entry(found: Sequence[tuple[float, Comparison]]) -> Entry:
    if not found:
        return ""
    gain, p = fmean(gain for gain, _ in found), max(pair.adjusted for _, pair in found)
    number = "0.0" if percent(gain) == "-0.0" else percent(gain)
    text = number.replace("-", "\N{MINUS SIGN}") if gain <= 0 else f"+{number}"
    return Remark(text, f"p {p_text(p)}" if p < 1e-4 else f"p = {p_text(p)}", strong=p < SIGNIFICANT)


def _list(pairs: Sequence[Comparison]) -> Table:
    titles = ("First", "Second", "Seed", "Only first robust", "Only second robust", "p", "p after Holm", "More robust")
    return listing(titles, map(_row, pairs), f"All {len(pairs)} tests", words=("Second", "More robust"), folded=True)


def _row(pair: Comparison) -> list[str]:
    counts = map(str, (pair.seed, pair.only_first, pair.only_second))
    winner = pair.first if pair.lead > 0 else pair.second if pair.lead else "not significant"
    return [pair.first, pair.second, *counts, p_text(pair.p), p_text(pair.adjusted), winner]
