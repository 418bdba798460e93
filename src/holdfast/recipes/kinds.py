"""What recipes can name: the attacks, methods, certifiers, encoders, heads and losses of the package."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

import holdfast.attacks
import holdfast.certify
import holdfast.losses
import holdfast.methods
import holdfast.models.encoders
import holdfast.models.heads
from holdfast import members
from holdfast.members import unknown

FOLDERS: dict[str, ModuleType] = {
    "attack": holdfast.attacks,
    "method": holdfast.methods,
    "certifier": holdfast.certify,
    "encoder": holdfast.models.encoders,
    "head": holdfast.models.heads,
}


def names(kind: str) -> list[str]:
    """All names of a kind (attack, method, certifier, encoder, head)."""
    return members.names(FOLDERS[kind])


def member(kind: str, name: str) -> type:
    """The class of this name; an unknown name is refused and the closest known one suggested."""
    file = name.replace("-", "_")
    if file not in names(kind):
        raise ValueError(unknown(f"{kind} {name!r}", name, names(kind)))
    return members.member(FOLDERS[kind], file)


def name_of(value: object) -> str:
    """The recipe name of an attack, a method, a certifier or an encoder: the name of its file."""
    return type(value).__module__.rpartition(".")[2]


def losses() -> Mapping[str, Callable[..., object]]:
    """Every per-sample loss by name: the public functions whose first parameters are (out, rows)."""
    losses = {}
    for info in pkgutil.iter_modules(holdfast.losses.__path__):
        module = import_module(f"holdfast.losses.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            first = list(inspect.signature(function).parameters)[:2]
            if first == ["out", "rows"] and not name.startswith("_"):
                losses[name] = function
    return losses
