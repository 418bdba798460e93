"""The only result format: per-sample columns of one trained model, with facts and named arrays beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.records import format as files
from holdfast.records.facts import AttackFacts, Spend

Array = NDArray[Any]
Mask = NDArray[np.bool_]

REQUIRED = ("index", "y", "label")
PER_ATTACK = ("fooled", "distance", "label")


def column_name(kind: str, norm: str, attack: str) -> str:
    """The column of an attack: ``kind`` is fooled, distance or label."""
    return f"{kind}:{norm}:{attack}"


def array_name(norm: str, attack: str) -> str:
    """The array that holds the adversarial images of an attack."""
    return f"adversarial:{norm}:{attack}"


@dataclass(frozen=True, eq=False)
class Records:
    """What was measured of one trained model (one method, one seed), sample by sample.

    ``columns`` have equal length: ``index``, ``y``, ``label`` (the clean prediction) and, for each attack,
    ``fooled:<norm>:<name>``, ``distance:<norm>:<name>`` (nan where the point was outside the threat and earned
    nothing) and ``label:<norm>:<name>``. ``facts`` are JSON values: model, method, seed, data, weights, recipe,
    versions, commit, ``attacks`` (name to :class:`AttackFacts` as JSON), ``training`` and ``clean`` (costs).
    ``arrays`` are what is not a column, such as images.
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

    @property
    def right(self) -> Mask:
        """Which samples are classified as labelled when nobody attacks."""
        return np.asarray(self.columns["label"] == self.columns["y"])

    def spend(self) -> dict[str, Spend]:
        """What each stage cost: ``training`` and ``clean`` where known, then every attack under its name."""
        stages = {name: Spend.read(self.facts[name]) for name in ("training", "clean") if name in self.facts}
        return stages | {name: attack.spend for name, attack in self.attacks.items()}

    def beaten(self, name: str, eps: float) -> Mask:
        """Which samples the attack fools with a perturbation of length at most ``eps``."""
        attack = self.attacks[name]
        distance = self.columns[column_name("distance", attack.norm, name)]
        # the judge found the point inside the attack's threat, so rounding must not put it beyond that eps
        reach = np.minimum(distance, attack.eps)
        return np.asarray(self.columns[column_name("fooled", attack.norm, name)] & (reach <= eps))

    def held(self, eps: float, norm: str) -> Mask:
        """Which samples hold at ``eps``: classified right, and no attack of the norm fools within that length."""
        held = self.right
        for name, attack in self.attacks.items():
            if attack.norm == norm:
                held = held & ~self.beaten(name, eps)
        return held

    def measured(self, eps: float, norm: str) -> bool:
        """Whether what holds at ``eps`` was measured there; elsewhere it is an upper bound. At 0 nothing can move."""
        return eps == 0 or any(a.norm == norm and a.speaks_for(eps) for a in self.attacks.values())

    def save(self, folder: Path) -> None:
        """Write records.csv, arrays.npz if there are arrays, and last facts.json, which makes the folder whole."""
        files.write(folder, self.columns, self.facts, self.arrays)

    @staticmethod
    def load(folder: Path) -> Records:
        """Read what :meth:`save` wrote, by this version or an earlier one; half a folder is refused."""
        return Records(*files.read(folder))


def _ordered(columns: Mapping[str, Array]) -> dict[str, Array]:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise ValueError(f"records lack the column {missing[0]!r}; they need at least {', '.join(REQUIRED)}")
    return {name: columns[name] for name in REQUIRED} | dict(columns)


def _column(name: str, values: Array) -> Array:
    _check_name(name)
    given = np.asarray(values)
    kind = files.KINDS.get(given.dtype.kind)
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
    try:
        whole = bool(name) and "\0" not in name and bool(name.encode())
    except UnicodeEncodeError:
        whole = False
    if not whole:
        raise ValueError(f"{name!r} cannot name a column or an array; use text without NUL and lone surrogates")


def _json(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:  # through JSON and back, so that what is held is what will be read
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
            odd = sorted(needed ^ given)[0]
            lacks = "its column is missing" if odd in needed else "facts['attacks'] does not name it"
            raise ValueError(f"{odd!r} is half recorded: {lacks}; give each attack its columns and its facts")
        wrong = [name for name in sorted(needed) if columns[name].dtype != dtype]
        if wrong:
            raise ValueError(f"column {wrong[0]!r} is {columns[wrong[0]].dtype} but must be {dtype}; convert it")
