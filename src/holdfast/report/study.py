"""What one page reports: models under attack, classifiers with certificates, or both."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.analysis import Analysis

_RADIUS = "radius:"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The records of one model: its name on the page, its method and seed, its training log, and its analysis if any.

    ``group`` tells classifiers of one name apart, such as ``"K = 1"`` and ``"K = 11"``; it is empty for networks.
    """

    name: str
    method: str
    seed: int
    records: Records
    metrics: Sequence[Mapping[str, Any]] = ()
    group: str = ""
    analysis: Analysis | None = None
    left_out: str = ""  # why a stored analysis is not shown

    @property
    def title(self) -> str:
        """The name of the model with its group."""
        return f"{self.name}, {self.group}" if self.group else self.name

    @property
    def label(self) -> str:
        """The title with the seed."""
        return f"{self.title} (seed {self.seed})"

    @property
    def trained(self) -> bool:
        """True for a model that holdfast trained: the seed is that of its training."""
        return "training" in self.records.facts

    @property
    def certificates(self) -> list[str]:
        """The certificates of this run as ``<norm>:<certifier>``."""
        return [name.removeprefix(_RADIUS) for name in self.records.columns if name.startswith(_RADIUS)]


def today() -> str:
    """The day of a measurement that ends now."""
    return datetime.now(UTC).date().isoformat()


def analysis_of(run: Run) -> Analysis:
    """The analysis of a run that has one."""
    assert run.analysis is not None
    return run.analysis


def by_title(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each title, seeds ascending, titles in the order of their first run."""
    return _grouped(runs, lambda run: run.title)


def by_name(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each name, seeds ascending; for runs of one group, whose name need not repeat it."""
    return _grouped(runs, lambda run: run.name)


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return {name: sorted(group, key=lambda run: run.seed) for name, group in groups.items()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs to compare; runs of one name and group are the same method trained with different seeds.

    ``norm`` and ``eps`` say where robust accuracy is compared and ``threat`` says it in words; they are absent when
    nothing was attacked. ``radii`` are the radii at which certified error is tabulated. ``terms`` explain the names of
    methods, ``date`` is the day of the last measurement, ``notes`` say what was left out. ``code`` is the digest of the
    code that writes the page; results made by other code are marked.
    """

    name: str
    title: str
    description: str
    runs: Sequence[Run]
    recipe: str
    norm: str | None = None
    eps: float | None = None
    threat: str = ""
    radii: Sequence[float] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    notes: Sequence[str] = ()
    code: str = ""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"the study {self.name!r} has no runs to report; train and evaluate at least one")
        if (self.norm is None) != (self.eps is None):
            raise ValueError(f"the study {self.name!r} has norm {self.norm} and eps {self.eps}; give both or neither")
        keys = [(run.title, run.seed) for run in self.runs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise ValueError(f"the study {self.name!r} holds {twice[0]!r} with seed {twice[1]} twice; name them apart")
        self.attacks()
        certified = [run.records for run in self.runs if run.certificates]
        for records in certified[1:]:
            check_same_samples(certified[0], records)

    @property
    def titles(self) -> list[str]:
        """The titles of all runs, in the order of their first run."""
        return list(by_title(self.runs))

    @property
    def first_seed(self) -> str:
        """What captions of figures that show one seed of each model end with; nothing if no model has several."""
        return " First seed." if len(self.runs) > len(self.titles) else ""

    def attacked(self) -> dict[str, list[Run]]:
        """The runs of each title that accuracy is tabulated for: all but those that only have certificates."""
        return by_title(run for run in self.runs if run.records.attacks or not run.certificates)

    def attacks(self) -> dict[str, AttackFacts]:
        """The attacks of all runs by name; one name must mean one threat in all runs."""
        found: dict[str, AttackFacts] = {}
        for name, attack in (item for run in self.runs for item in run.records.attacks.items()):
            first = found.setdefault(name, attack)
            if (first.norm, first.eps, first.minimal) != (attack.norm, attack.eps, attack.minimal):
                raise ValueError(
                    f"the attack {name!r} is {first.norm} at eps {first.eps:g} in one run and {attack.norm} at eps "
                    f"{attack.eps:g} in another; give attacks that differ names that differ"
                )
        return found

    def stated_attacks(self) -> dict[str, AttackFacts]:
        """The attacks that measure robust accuracy at the stated norm and eps, on all samples."""
        if self.eps is None:
            return {}
        whole = {name: a for name, a in self.attacks().items() if a.drawn_from is None}
        return {name: a for name, a in whole.items() if a.norm == self.norm and a.measured_at(self.eps)}

    def unmeasured(self) -> list[Run]:
        """The runs whose robust accuracy at the stated eps is an upper bound: no attack measured it there."""
        if self.norm is None or self.eps is None:
            return []
        runs = [run for group in self.attacked().values() for run in group]
        return [run for run in runs if not run.records.measured(self.eps, self.norm)]

    def analyzed(self) -> dict[str, list[Run]]:
        """The runs of each title that were analyzed."""
        return by_title(run for run in self.runs if run.analysis is not None)

    def norms(self) -> list[str]:
        """The norms of the attacks, the stated norm first."""
        stated = [] if self.norm is None else [self.norm]
        return list(dict.fromkeys([*stated, *(attack.norm for attack in self.attacks().values())]))

    def certified(self) -> dict[tuple[str, str], list[Run]]:
        """The runs that have each certificate ``<norm>:<certifier>``, by group and certificate."""
        found: dict[tuple[str, str], list[Run]] = {}
        for run in self.runs:
            for certificate in run.certificates:
                found.setdefault((run.group, certificate), []).append(run)
        return found


def check_same_samples(a: Records, b: Records) -> None:
    """Refuse to compare two models that were not measured on the same samples with the same labels."""
    what = next((what for what, same in _alike(a, b).items() if not same), None)
    if what is not None:
        raise ValueError(
            f"two models of {len(a)} and {len(b)} records were not measured on the same {what}, so they cannot be "
            "compared; evaluate both on the same data in the same order"
        )


def _alike(a: Records, b: Records) -> dict[str, bool]:
    """What two models have in common: older records do not identify their inputs, only the data set by its name."""
    names = [given for one in (a, b) if (given := one.facts.get("data", {}).get("name")) is not None]
    inputs = [given for one in (a, b) if (given := one.facts.get("samples")) is not None]
    return {
        "samples": np.array_equal(a.columns["index"], b.columns["index"]),
        "labels": np.array_equal(a.columns["y"], b.columns["y"]),
        "inputs": len(set(inputs)) <= 1 if len(inputs) == 2 else len(set(names)) <= 1,
    }
