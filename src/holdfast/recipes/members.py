"""Find the member of a folder by its recipe name: the file name is the name."""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

import holdfast.attacks
import holdfast.losses
import holdfast.methods
import holdfast.models.encoders
import holdfast.models.heads

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
    found = (module.name for module in pkgutil.iter_modules(FOLDERS[kind].__path__))
    return sorted(name for name in found if not name.startswith("_"))


def member(kind: str, name: str) -> type:
    """The one public class of the file with this name."""
    file = name.replace("-", "_")
    if file not in names(kind):
        raise ValueError(unknown(f"{kind} {name!r}", name, names(kind)))
    module = import_module(f"{FOLDERS[kind].__name__}.{file}")
    found = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    (only,) = [c for c in found if not c.__name__.startswith("_")]
    return only


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


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """One sentence about a name that does not exist, naming the nearest that does."""
    known = sorted(known)
    alike = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), alike, n=1, cutoff=0.5)
    hint = f"did you mean {alike[near[0]]!r}? " if near else ""
    return f"unknown {what}; {hint}known: {', '.join(known) or 'none'}"
