"""The result format: per-sample columns of one classifier, with facts and named arrays."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.records import format as on_disk
from holdfast.records.facts import AttackFacts, Spend

Array = NDArray[Any]
Mask = NDArray[np.bool_]

REQUIRED = ("index", "y", "label")
PER_ATTACK = ("fooled", "distance", "label")


def column_name(kind: str, norm: str, attack: str) -> str:
    """The name of an attack's column: ``kind`` is fooled, distance or label."""
    return f"{kind}:{norm}:{attack}"


def array_name(norm: str, attack: str) -> str:
    """The name of the array that holds an attack's adversarial images."""
    return f"adversarial:{norm}:{attack}"


@dataclass(frozen=True, eq=False)
class Records:
    """The measurements of one classifier (one method, one seed), sample by sample.

    ``columns`` have equal length: ``index``, ``y``, ``label`` (the clean prediction) and, for each attack,
    ``fooled:<norm>:<name>``, ``distance:<norm>:<name>`` (nan where the point was outside the threat and does
    not count) and ``label:<norm>:<name>``, and for each certificate ``radius:<norm>:<name>`` (0 where the prediction
    is not certified) and ``upper:<norm>:<name>`` (inf where no adversarial example is known), and
    ``prediction:<norm>:<name>`` (-1: abstains) if it is of another classifier, such as a smoothed network. A network
    that may abstain has ``abstained``: without an attack an abstention is an error, under attack it is not fooled. For
    a randomized model, judged in several draws of its random numbers, ``fooled`` is True if any draw misclassifies the
    point, ``label`` is the first wrong label, and ``accuracy`` and ``accuracy:<norm>:<name>`` are the shares of draws
    that classify the clean sample and the point correctly. For a cascade ``stage:<norm>:<name>`` is the number of the
    stage that fooled the sample, -1 if none did. ``proved:<norm>:<name>`` marks samples that were not attacked because
    a certificate proves them at the eps of the attack. ``facts`` are JSON
    values: model, method, seed, data, weights, recipe, versions, commit, ``attacks`` (name to :class:`AttackFacts` as
    JSON), ``certificates`` (name to norm, seconds and settings), ``training`` and ``clean`` (costs). ``arrays`` hold
    everything that is not a column, such as images.
    """

    columns: Mapping[str, Array]
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {name: _column(name, values) for name, values in _ordered(self.columns).items()}
        arrays = {name: _array(name, values) for name, values in self.arrays.items()}
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "arrays", MappingProxyType(arrays))
        object.__setattr__(self, "facts", MappingProxyType(_json(self.facts)))
        _check_lengths(columns)
        _check_attacks(columns, self.attacks)

    def __len__(self) -> int:
        return len(self.columns["index"])

    @cached_property
    def attacks(self) -> Mapping[str, AttackFacts]:
        """The attacks that were run, by name."""
        return {name: AttackFacts.read(given) for name, given in self.facts.get("attacks", {}).items()}

    @cached_property
    def certificates(self) -> Mapping[str, Mapping[str, Any]]:
        """The certificates that were computed, by name: norm, seconds and settings."""
        older = self.facts.get("certifier")  # before there could be several: one, with its name and settings inside
        return {**self.facts.get("certificates", {}), **({older.get("name", ""): older} if older else {})}

    @property
    def abstained(self) -> Mask | None:
        """Mask of the samples on which the network abstains without an attack; None for one that never does."""
        return self.columns.get("abstained")

    @property
    def correct(self) -> Mask:
        """Mask of the samples that are classified correctly without an attack; an abstention is an error."""
        right = self.columns["label"] == self.columns["y"]
        return np.asarray(right if self.abstained is None else right & ~self.abstained)

    def spend(self) -> dict[str, Spend]:
        """The cost of each stage: ``training`` and ``clean`` where known, then every attack and certificate."""
        stages = {name: Spend.read(self.facts[name]) for name in ("training", "clean") if name in self.facts}
        stages |= {name: Spend(a.seconds, a.forwards, a.backwards) for name, a in self.attacks.items()}
        return stages | {f"certificate {name}".rstrip(): Spend.read(it) for name, it in self.certificates.items()}

    def fooled_within(self, name: str, eps: float) -> Mask:
        """Mask of the samples that the attack fools with a perturbation of norm at most ``eps``."""
        attack = self.attacks[name]
        distance = self.columns[column_name("distance", attack.norm, name)]
        # the judge found the point inside the attack's threat, so rounding must not put it beyond that eps
        reach = np.minimum(distance, attack.eps)
        return np.asarray(self.columns[column_name("fooled", attack.norm, name)] & (reach <= eps))

    def held(self, eps: float, norm: str) -> Mask:
        """Mask of the samples that hold at ``eps``: correct, and no attack of this norm fools them within ``eps``."""
        held = self.correct
        for name, attack in self.attacks.items():
            if attack.norm == norm:
                held = held & ~self.fooled_within(name, eps)
        return held

    def measured(self, eps: float, norm: str) -> bool:
        """True if accuracy at ``eps`` was measured: an attack was run there, or eps is 0. Else it is an upper bound."""
        return eps == 0 or any(a.norm == norm and a.measured_at(eps) for a in self.attacks.values())

    def save(self, folder: Path, packed: bool = False) -> None:
        """Write records.csv, arrays.npz if there are arrays, and last facts.json, which completes the folder.

        ``packed`` writes records.csv.xz in place of records.csv.
        """
        on_disk.write(folder, self.columns, self.facts, self.arrays, packed)

    @staticmethod
    def load(folder: Path) -> "Records":
        """Read what :meth:`save` wrote, in this version or an earlier one; an incomplete folder is refused."""
        return Records(*on_disk.read(folder))


def _ordered(columns: Mapping[str, Array]) -> dict[str, Array]:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise ValueError(f"records lack the column {missing[0]!r}; they need at least {', '.join(REQUIRED)}")
    return {name: columns[name] for name in REQUIRED} | dict(columns)


def _column(name: str, values: Array) -> Array:
    _check_name(name)
    given = np.asarray(values)
    kind = on_disk.KINDS.get(given.dtype.kind)
    if kind is None or given.ndim != 1 or not np.can_cast(given.dtype, kind, "safe"):
        raise ValueError(
            f"column {name!r} is {given.dtype} of shape {given.shape} but columns are one-dimensional and hold "
            "booleans, 64-bit integers or floats; convert it or put it among the arrays"
        )
    column = given.astype(kind)
    column.setflags(write=False)
    return column


def _array(name: str, values: Array) -> Array:
    _check_name(name)
    array = np.asarray(values).view()
    if array.dtype.hasobject:
        raise ValueError(f"array {name!r} holds Python objects, which are never stored; convert it to numbers")
    array.setflags(write=False)
    return array


def _check_name(name: str) -> None:
    if not name or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in name):
        raise ValueError(f"{name!r} cannot name a column or an array; use text without NUL and lone surrogates")


def _json(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:  # a round trip through JSON, so that facts in memory equal facts that are read later
        value: dict[str, Any] = json.loads(json.dumps(dict(facts), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"facts must be JSON values but {error}; write numpy values as numbers, inf as text") from None
    return value


def _check_lengths(columns: Mapping[str, Array]) -> None:
    n = len(columns["index"])
    for name, values in columns.items():
        if len(values) != n:
            raise ValueError(
                f"column {name!r} has {len(values)} rows but index has {n}; every column needs one per row"
            )


def _check_attacks(columns: Mapping[str, Array], attacks: Mapping[str, AttackFacts]) -> None:
    for kind, dtype in zip(PER_ATTACK, ("bool", "float64", "int64"), strict=True):
        needed = {column_name(kind, attack.norm, name) for name, attack in attacks.items()}
        given = {name for name in columns if name.startswith(f"{kind}:")}
        if needed != given:
            name = sorted(needed ^ given)[0]
            lacks = "its column is missing" if name in needed else "facts['attacks'] does not name it"
            raise ValueError(f"{name!r} is half recorded: {lacks}; give each attack its columns and its facts")
        wrong = [name for name in sorted(needed) if columns[name].dtype != dtype]
        if wrong:
            raise ValueError(f"column {wrong[0]!r} is {columns[wrong[0]].dtype} but must be {dtype}; convert it")
