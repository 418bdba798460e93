"""Paired tests between methods on the same samples."""

from collections.abc import Sequence

from holdfast.report.format import p_text
from holdfast.report.page import Section
from holdfast.report.study import Study
from holdfast.report.summary import SIGNIFICANT, Comparison, compared
from holdfast.report.table import Table, listing

ORDER = 20


def section(study: Study) -> Section | None:
    """A table of all pairs of methods, or the reason why there is none."""
    if study.norm is None:
        return None
    pairs, refusal = compared(study)
    if not pairs:
        return _section([refusal or "No two methods share a seed."])
    note = (
        "Worst case at the stated eps on the same samples; exact two-sided McNemar test with Holm's correction for all "
        f"{len(pairs)} tests. A difference is called significant below {SIGNIFICANT} after the correction."
    )
    return _section([note], [_table(pairs)])


def _section(sentences: Sequence[str], tables: Sequence[Table] = ()) -> Section:
    return Section(id="pairs", title="Paired comparisons", sentences=sentences, tables=tables)


def _table(pairs: Sequence[Comparison]) -> Table:
    titles = ("First", "Second", "Seed", "Only first robust", "Only second robust", "p", "p after Holm", "More robust")
    return listing(titles, map(_row, pairs), words=("Second", "More robust"))


def _row(pair: Comparison) -> list[str]:
    counts = map(str, (pair.seed, pair.only_first, pair.only_second))
    winner = pair.first if pair.lead > 0 else pair.second if pair.lead else "not significant"
    return [pair.first, pair.second, *counts, p_text(pair.p), p_text(pair.adjusted), winner]
