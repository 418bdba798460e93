"""Look up the members of a folder by their recipe names: the name of a file is the name of what it holds."""

import inspect
import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType


def names(folder: ModuleType) -> list[str]:
    """The names of the modules in a package, sorted; those that start with an underscore are machinery."""
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def classes(folder: ModuleType, name: str) -> list[type]:
    """The public classes that the module ``name`` of a package defines."""
    module = import_module(f"{folder.__name__}.{name}")
    found = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return [cls for cls in found if not cls.__name__.startswith("_")]


def member(folder: ModuleType, name: str) -> type:
    """The one public class that the module ``name`` of a package defines."""
    (only,) = classes(folder, name)
    return only


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """An error message for a name that does not exist; it names the nearest one that does."""
    known = sorted(known)
    lower = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[near[0]]!r}? " if near else ""
    return f"unknown {what}; {hint}known: {', '.join(known) or 'none'}"
