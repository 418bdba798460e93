"""Checks of a recipe's top-level keys: its name, seeds and threads, and the names of methods and attacks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+@&-]*")
_ANY = re.compile(r".+", re.DOTALL)


def folder_name(name: str) -> str:
    """The name of a recipe, checked to be usable as the name of its results folder."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"the recipe is called {name!r} but its results go to a folder of that name; leave out slashes"
        )
    return name


def seeds(value: Any) -> tuple[int, ...]:
    """The seeds of a recipe, from one seed or a list."""
    given = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in given)
    if not given or not whole or len(set(given)) < len(given):
        raise ValueError(f"seeds is {value!r} but must be different whole numbers of zero or more")
    return tuple(given)


def threads(value: int | None) -> int | None:
    """The number of threads torch may use; None: torch decides."""
    if value is not None and value < 1:
        raise ValueError(f"threads is {value} but must be at least 1; leave it out to let torch decide")
    return value


def named(table: Any, where: str, *, stored: bool = False) -> dict[str, Any]:
    """The entries of a table such as [methods]; entries set to ``false``, e.g. with --set, are removed.

    Names that differ only by case are refused, and characters that folders or columns cannot have, except that a
    ``stored`` recipe may have been written by the command line, which names attacks by their settings.
    """
    if isinstance(table, Mapping):
        table = {name: value for name, value in table.items() if value is not False}
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"{where} must be a table with at least one entry")
    names, allowed = [name.casefold() for name in table], _ANY if stored else _NAME
    for name in table:
        if names.count(name.casefold()) > 1:
            raise ValueError(
                f"{where} has {name!r} twice but for upper and lower case, which some disks cannot tell apart"
            )
        if not allowed.fullmatch(name):
            raise ValueError(f"{where} has the name {name!r}; use letters, digits, spaces and . _ + @ & - only")
    return dict(table)


def different_rows(*tables: Iterable[str]) -> None:
    """Refuse a name that two tables of classifiers share: it names a row of the report and a folder."""
    names = [name.casefold() for table in tables for name in table]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two tables of methods, models and metrics have the name {twice!r}; rename one")
