"""What each stage of a cascade of attacks found and cost, and whether queries found what gradients did not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_title
from holdfast.report.table import listing

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
    return Section(id="cascades", title="Cascades", sentences=_NOTE, tables=[table], warnings=warnings)


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


def _masked(run: Run) -> Iterator[str]:
    for name, attack in run.records.attacks.items():
        queried = sum(stage["fooled"] for stage in attack.stages if str(stage["name"]).startswith("square"))
        if queried:
            yield (
                f"{run.label}: Square, which uses no gradients, fooled {queried} samples that the gradient attacks of "
                f"{name} did not; the gradients of this model may be masked."
            )
