"""The tables [attacks], [craft] and [validate]: attacks by name, with defaults that depend on their role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from torch import nn

from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack
from holdfast.geometry import Threat
from holdfast.recipes.build import Table, build, build_attack, member, section


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """An attack crafted on one or several other models of the study, trained with another seed than the target.

    ``source`` names their methods; ``"self"`` is the method of the target. See :class:`Transfer` for the options.
    """

    attack: Attack
    source: str | tuple[str, ...] = "self"
    diversity: float = 0.0
    smallest: float = 0.9
    translation: int = 1

    def __post_init__(self) -> None:
        if len(set(self.sources)) < len(self.sources):
            raise ValueError(f"source is {list(self.sources)} but each model is used once; name each method once")
        self.on([nn.Identity() for _ in self.sources])  # raises before training if the attack cannot be transferred

    @property
    def sources(self) -> tuple[str, ...]:
        """The methods of the models on which the attack crafts."""
        return (self.source,) if isinstance(self.source, str) else self.source

    def on(self, models: Sequence[nn.Module]) -> Transfer:
        """The attack that crafts on these models."""
        return Transfer(
            source=models[0] if len(models) == 1 else models,
            attack=self.attack,
            diversity=self.diversity,
            smallest=self.smallest,
            translation=self.translation,
        )


def curve_name(attack: str, eps: float) -> str:
    """The name of an attack that measures a point of the curve at another eps than its own."""
    return f"{attack}@{eps:g}"


def entry_table(name: str, value: Any) -> dict[str, Any]:
    """The table of an entry of [methods], [attacks] or [certificates]; ``name`` is by default its key in lower case."""
    return {"name": name.lower(), **value} if isinstance(value, Mapping) else {"name": value}


def read_attack(name: str, table: Table, threat: Threat) -> Attack | TransferConfig:
    """An attack of the evaluation."""
    where = f"attacks.{name}"
    table = completed(table, where)
    if table["name"] != "transfer":
        return build_attack(table, where, threat)
    table.pop("name")
    return cast(TransferConfig, build(TransferConfig, table, where, {"threat": threat}))


def read_validation(value: Any, threat: Threat) -> Attack:
    """The attack that selects the best epoch: PGD with 10 steps unless another is named."""
    table = section({"name": value} if isinstance(value, str) else value, "validate")
    table = completed(table if "name" in table else {"name": "pgd", "steps": 10, **table}, "validate")
    return build_attack(table, "validate", threat)


def with_crafting(value: Any, where: str) -> dict[str, Any]:
    """The table of a method, with defaults for its attack and for a method inside it."""
    table = section({"name": value} if isinstance(value, str) else value, where)
    if "attack" in table:
        table["attack"] = crafting(table["attack"], f"{where}.attack")
    if "method" in table:
        table["method"] = with_crafting(table["method"], f"{where}.method")
    return table


def crafting(value: Any, where: str) -> dict[str, Any]:
    """An attack for training or transfer: PGD by default, returning its last iterate if it can choose."""
    table = {"name": "pgd", **section({"name": value} if isinstance(value, str) else value, where)}
    return completed({"keep": "last", **table} if "keep" in _settings(table, where) else table, where)


def completed(table: Table, where: str) -> dict[str, Any]:
    """The table of an attack; an attack inside it gets the defaults of :func:`crafting`."""
    if "attack" not in _settings(table, where):
        return dict(table)
    return {**table, "attack": crafting(table.get("attack", {}), f"{where}.attack")}


def _settings(table: Table, where: str) -> list[str]:
    return [field.name for field in fields(member("attack", table["name"], where))]
