"""Threats and attacks in the short form that the command line and :func:`holdfast.evaluate` take."""

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal

from holdfast.attacks.triage import NORMS as TRIAGE_NORMS
from holdfast.contracts import Attack
from holdfast.geometry import Threat, eps_text
from holdfast.recipes import kinds, source, toml
from holdfast.recipes.build import build_attack, table_of
from holdfast.recipes.tables.attack import completed

ATTACKS = ("noise", "fgsm", "pgd:steps=40", "triage")
"""The default attacks."""

OTHER_NORMS = ("noise", "fgsm", "pgd:steps=40,restarts=5", "pgd:steps=40,restarts=5,loss=logit_difference")
"""The default attacks in norms in which triage has no form."""

_SEPARATOR = re.compile(r",(?![^\[{]*[\]}])")  # a comma outside of lists and tables


EPOCHS, CRAFT = 10, "pgd:steps=10"
"""What trains a user's network if nothing else is asked for: the number of epochs, and the attack in training."""

LABELS = {"linf": ("noise", "rays", "hopskipjump"), "l2": ("noise", "hopskipjump")}
"""The default attacks on a model that gives only labels, by norm."""

Access = Literal["gradients", "scores", "labels"]
"""What attacks get from a model."""


def default_attacks(threat: Threat, access: Access = "gradients") -> Sequence[str]:
    """The attacks that are run if none are named."""
    if access != "gradients":
        queries = ("square",) if access == "scores" and threat.norm.name in LABELS else ()
        return (*LABELS.get(threat.norm.name, ("noise",)), *queries)
    return ATTACKS if threat.norm.name in TRIAGE_NORMS else OTHER_NORMS


def settings_table(text: str, where: str) -> dict[str, Any]:
    """The recipe table of an attack or a method written as name:key=value,key=value."""
    name, _, rest = text.partition(":")
    table: dict[str, Any] = {"name": name.strip()}
    for part in _SEPARATOR.split(rest) if rest.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in table:
            raise ValueError(
                f"{where} has {part.strip()!r} where a new key=value is needed, e.g. pgd:steps=40,step=1/255"
            )
        table[key] = source.value(value)
    return table


def attack_table(text: str, where: str) -> dict[str, Any]:
    """The recipe table of an attack written as name:key=value,key=value."""
    table = settings_table(text, where)
    if table["name"] == "transfer":
        raise ValueError(
            f"{where} crafts on another model, which has no short form; leave it out or name it in a recipe"
        )
    return completed(table, where)


def read_attack(text: str, where: str, threat: Threat) -> Attack:
    """An attack written as name:key=value,key=value."""
    return build_attack(attack_table(text, where), where, threat)


def attack_name(attack: Attack) -> str:
    """An attack as :func:`read_attack` takes it: the name of its file and the settings that are not defaults."""
    changed = {}
    for field in fields(attack) if type(attack).__module__.startswith("holdfast.") else ():  # type: ignore[arg-type]
        value = table_of(getattr(attack, field.name))
        default = table_of(field.default if field.default_factory is MISSING else field.default_factory())
        if field.init and value != default and isinstance(value, str | int | float):
            changed[field.name] = eps_text(value) if isinstance(value, float) else toml.value(value).strip('"')
    name = kinds.name_of(attack) if type(attack).__module__.startswith("holdfast.") else type(attack).__name__
    return name + (":" + ",".join(f"{key}={value}" for key, value in changed.items()) if changed else "")


def name_at(name: str, threat: Threat) -> str:
    """The name of an attack at another threat than the first of an evaluation."""
    return f"{name} at {threat.short}"
