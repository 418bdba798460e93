"""What each stage of a cascade of attacks found and cost, and whether queries found what gradients did not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.report.elements.format import percent
from holdfast.report.elements.table import listing
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_title
from holdfast.statistics import clopper_pearson

ORDER = 45

_NOTE = (
    "Each stage attacks samples that no earlier stage fooled: all of them, or those that came nearest to being "
    "misclassified.",
    "Counts are sums over seeds, passes are means per attacked sample.",
)
_TITLES = ("Method", "Attack", "Stage", "Attacked", "Fooled", "Forwards", "Backwards")

Stages = Sequence[Mapping[str, Any]]


def section(study: Study) -> Section | None:
    """One table with the stages of all cascades."""
    rows = [row for title, runs in by_title(study.runs).items() for row in _rows(title, runs)]
    if not rows:
        return None
    table = listing(_TITLES, rows, "The stages", words=["Attack", "Stage"], folded=True)
    warnings = [warning for run in study.runs for warning in _masked(run)]
    sentences = [*_NOTE, *(sentence for run in study.runs for sentence in confirmed(run))]
    return Section(id="cascades", title="Cascades", sentences=sentences, tables=[table], warnings=warnings)


def _rows(title: str, runs: Sequence[Run]) -> Iterator[list[str]]:
    for name, of_seeds in _cascades(runs).items():
        for same in zip(*of_seeds, strict=False):  # one stage of all seeds
            count = {key: sum(stage[key] for stage in same) for key in ("attacked", "fooled", "forwards", "backwards")}
            each = (f"{count[key] / max(1, count['attacked']):.1f}" for key in ("forwards", "backwards"))
            yield [title, name, same[0]["name"], str(count["attacked"]), str(count["fooled"]), *each]


def _cascades(runs: Sequence[Run]) -> dict[str, list[Stages]]:
    found: dict[str, list[Stages]] = {}
    for run in runs:
        for name, attack in run.records.attacks.items():
            if attack.stages:
                found.setdefault(name, []).append(attack.stages)
    return found


def confirmed(run: Run) -> Iterator[str]:
    """What AutoAttack found among samples that another cascade left standing, and a bound for all of them."""
    for attack in run.records.attacks.values():
        if attack.drawn_from is None or not attack.stages:
            continue
        drawn, broken = int(attack.stages[0]["attacked"]), sum(stage["fooled"] for stage in attack.stages)
        standing = int((run.records.correct & ~run.records.fooled_within(attack.drawn_from, attack.eps)).sum())
        found = f"{run.label}: AutoAttack fooled {broken} of {drawn} samples that {attack.drawn_from} left standing"
        if drawn == standing:
            yield f"{found}, which are all of them."
        elif drawn:
            points = percent(clopper_pearson(broken, drawn) * standing / len(run.records))
            yield (
                f"{found}, drawn at random among {standing}; on all of them it would leave at most {points} points "
                "less (95 % confidence, Clopper-Pearson)."
            )


def _masked(run: Run) -> Iterator[str]:
    for name, attack in run.records.attacks.items():
        queried = sum(stage["fooled"] for stage in attack.stages if str(stage["name"]).startswith("square"))
        if queried:
            samples = "1 sample" if queried == 1 else f"{queried} samples"
            yield (
                f"{run.label}: Square, which uses no gradients, fooled {samples} that the gradient attacks of {name} "
                "did not: its gradients may be masked, or a longer gradient attack may be needed."
            )
