"""What recipes can name: the classes of the folders attacks, methods, encoders and heads, and every loss."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

import holdfast.attacks
import holdfast.losses
import holdfast.methods
import holdfast.models.encoders
import holdfast.models.heads
from holdfast import members
from holdfast.members import unknown

FOLDERS: dict[str, ModuleType] = {
    "attack": holdfast.attacks,
    "method": holdfast.methods,
    "encoder": holdfast.models.encoders,
    "head": holdfast.models.heads,
}

AWAITED = ("cw_l2", "deepfool", "jsma")
"""Attacks of published tables that holdfast does not have yet: recipes may name them, running such a one is refused."""


def names(kind: str) -> list[str]:
    """What recipes can name of this kind (attack, method, encoder, head)."""
    return members.names(FOLDERS[kind])


def member(kind: str, name: str) -> type:
    """The class that a recipe names; an unknown name is refused with the nearest known one."""
    file = name.replace("-", "_")
    if file not in names(kind):
        raise ValueError(unknown(f"{kind} {name!r}", name, names(kind)))
    return members.member(FOLDERS[kind], file)


def awaited(name: str) -> bool:
    """Whether an attack of this name is still to come."""
    file = name.replace("-", "_")
    return file in AWAITED and file not in names("attack")


def name_of(value: object) -> str:
    """The recipe name of an attack, a method or an encoder: the name of its file."""
    return type(value).__module__.rpartition(".")[2]


def losses() -> Mapping[str, Callable[..., object]]:
    """Every per-sample loss by its name: the public functions whose first arguments are (out, rows)."""
    found = {}
    for info in pkgutil.iter_modules(holdfast.losses.__path__):
        module = import_module(f"holdfast.losses.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = list(inspect.signature(function).parameters)[:2]
            if takes == ["out", "rows"] and not name.startswith("_"):
                found[name] = function
    return found
