"""Lookup of the modules of a package by recipe name: the name of a file is the name of the class it defines."""

import inspect
import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType


def names(folder: ModuleType) -> list[str]:
    """Return the sorted names of the public modules of a package."""
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def classes(folder: ModuleType, name: str) -> list[type]:
    """Return the public classes that the module ``name`` of a package defines."""
    module = import_module(f"{folder.__name__}.{name}")
    found = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return [cls for cls in found if not cls.__name__.startswith("_")]


def member(folder: ModuleType, name: str) -> type:
    """Return the one public class that the module ``name`` of a package defines."""
    (only,) = classes(folder, name)
    return only


def explained(cls: type) -> str:
    """Return what a class stands for: the first paragraphs of the docstrings of its module and of itself."""
    name, does = (first_paragraph(documented) for documented in (import_module(cls.__module__), cls))
    return f"{name.removesuffix('.')}. {does}"


def first_paragraph(documented: object) -> str:
    """Return the first paragraph of a docstring as one line of plain text."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split()).replace("``", "")


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """Return an error message for an unknown name, with the most similar known one."""
    known = sorted(known)
    lower = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[near[0]]!r}? " if near else ""
    return f"unknown {what}; {hint}known: {', '.join(known) or 'none'}"
