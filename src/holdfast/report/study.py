"""What one page is about: several trained models under one stated threat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained model: how it is called on the page, its method and seed, its records and its training log."""

    name: str
    method: str
    seed: int
    records: Records
    metrics: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs to compare at one ``norm`` and ``eps``; runs of one name are the same method trained with other seeds."""

    name: str
    title: str
    description: str
    runs: Sequence[Run]
    norm: str
    eps: float
    threat: str
    recipe: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"the study {self.name!r} has no runs to report; train and evaluate at least one")
        keys = [(run.name, run.seed) for run in self.runs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise ValueError(f"the study {self.name!r} holds {twice[0]!r} with seed {twice[1]} twice; name them apart")
        self.attacks()

    def by_name(self) -> dict[str, list[Run]]:
        """The runs of each name, seeds ascending, names in the order they were given."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.name, []).append(run)
        return {name: sorted(runs, key=lambda run: run.seed) for name, runs in groups.items()}

    def attacks(self) -> dict[str, AttackFacts]:
        """Every attack of any run by name; one name must mean one threat in all runs."""
        found: dict[str, AttackFacts] = {}
        for name, attack in (item for run in self.runs for item in run.records.attacks.items()):
            first = found.setdefault(name, attack)
            if (first.norm, first.eps, first.minimal) != (attack.norm, attack.eps, attack.minimal):
                raise ValueError(
                    f"the attack {name!r} is {first.norm} at eps {first.eps:g} in one run and {attack.norm} at eps "
                    f"{attack.eps:g} in another; give attacks that differ names that differ"
                )
        return found

    def norms(self) -> list[str]:
        """The norms that were attacked, the stated one first."""
        return list(dict.fromkeys([self.norm, *(attack.norm for attack in self.attacks().values())]))
