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
_MANY = 0.1  # the share of its samples from which on triage runs Square on all, too: gradients seem masked
_TITLES = ("Method", "Attack", "Stage", "Attacked", "Fooled", "Forwards", "Backwards")

Stages = Sequence[Mapping[str, Any]]


def section(study: Study) -> Section | None:
    """One table with the stages of all cascades."""
    rows = [row for title, runs in by_title(study.runs).items() for row in _rows(title, runs)]
    if not rows:
        return None
    table = listing(_TITLES, rows, "The stages", words=["Attack", "Stage"], folded=True)
    warnings = [f"{found}; its gradients may be masked." for run in study.runs for found in _queried(run, masked=True)]
    few = [f"{found}." for run in study.runs for found in _queried(run, masked=False)]
    sentences = [*_NOTE, *few, *(sentence for run in study.runs for sentence in confirmed(run))]
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


def _queried(run: Run, masked: bool) -> Iterator[str]:
    """What Square fooled after the gradient attacks of each cascade, if gradients seem masked, or else if not."""
    for name, attack in run.records.attacks.items():
        stages = [stage for stage in attack.stages if str(stage["name"]).startswith("square")]
        count = sum(stage["fooled"] for stage in stages)
        widest = max(stages, key=lambda stage: stage["attacked"], default={"fooled": 0, "attacked": 0})
        if count and masked == (widest["fooled"] > _MANY * widest["attacked"]):
            samples = "1 sample" if count == 1 else f"{count} samples"
            yield (
                f"{run.label}: Square, which uses no gradients, fooled {samples} that the gradient attacks of {name} "
                "did not"
            )
