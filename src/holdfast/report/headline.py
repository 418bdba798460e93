"""The main results of a study under attack, in sentences."""

from collections.abc import Sequence

from holdfast.report.format import eps_text, listed, percent, seeds_text
from holdfast.report.study import Study
from holdfast.report.summary import Comparison, compared, robust_accuracy
from holdfast.report.table import Cell


def headline(study: Study) -> list[str]:
    """Robust accuracy of each method, the best first, and which differences are significant."""
    cells = robust_accuracy(study)
    ranked = {title: cells[title] for title in sorted(cells, key=lambda title: -cells[title].mean)}
    if not ranked:
        return []
    several = [_caution(study)] if len(ranked) > 1 else []
    return [_ranking(study, ranked), *_verdicts(study, list(ranked)), *several]


def _ranking(study: Study, ranked: dict[str, Cell]) -> str:
    attacks = len(study.stated_attacks())
    sizes = sorted({len(run.records) for runs in study.attacked().values() for run in runs})
    samples = " to ".join(str(n) for n in dict.fromkeys((sizes[0], sizes[-1])))
    bound = "at most " if study.unmeasured() else ""
    each = ", ".join(f"{title} {_robust(cell, bound)}" for title, cell in ranked.items())
    where = f"{study.norm} eps {eps_text(study.eps or 0.0)}"
    scope = f"worst case over {attacks} attack{'s' * (attacks != 1)}, on {samples} samples"
    return f"Robust accuracy at {where}, {scope}: {each}."


def _robust(cell: Cell, bound: str) -> str:
    if cell.spread is None:
        return "not measured"
    seeds = seeds_text(cell.spread.n)
    if cell.spread.std is not None:
        seeds = f"mean of {seeds}, standard deviation {percent(cell.spread.std)} points"
    return f"{bound}{percent(cell.mean)} % (95 % interval {percent(cell.low)} to {percent(cell.high)}; {seeds})"


def _verdicts(study: Study, ranked: Sequence[str]) -> list[str]:
    """How the most robust method compares with each of the others."""
    pairs, refusal = compared(study)
    if refusal:
        return [f"No paired test: {refusal}"]
    best, *others = ranked
    found: dict[str, list[str]] = {}
    for other in others:
        found.setdefault(_verdict(best, other, pairs), []).append(other)
    return [f"{best} {verdict.format(listed(names))}." for verdict, names in found.items()]


def _verdict(best: str, other: str, pairs: Sequence[Comparison]) -> str:
    leads = {c.lead if c.first == best else -c.lead for c in pairs if {c.first, c.second} == {best, other}}
    if not leads:
        return "shares no seed with {}, so no paired test was made"
    if leads == {1}:
        return "is significantly more robust than {} on the same samples (exact McNemar test, 5 % level after Holm)"
    if leads == {0}:
        return "does not differ significantly from {}"
    return "differs significantly from {} at some seeds only"


def _caution(study: Study) -> str:
    scope = "The tests are about these trained models on these samples"
    if any(len(runs) == 1 for runs in study.attacked().values()):
        return f"{scope}; one seed does not show how much a retrained model would differ."
    return f"{scope}; the deviation over seeds shows how much a retrained model may differ."
