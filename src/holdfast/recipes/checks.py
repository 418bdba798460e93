"""Checks of what stands at the top of a recipe: its name, its seeds, its threads, the names of methods and attacks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+@&-]*")
_ANY = re.compile(r".+", re.DOTALL)


def folder_name(name: str) -> str:
    """The name of a recipe, which its results' folder has too."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"the recipe is called {name!r} but its results go to a folder of that name; leave out slashes"
        )
    return name


def seeds(value: Any) -> tuple[int, ...]:
    """One seed or several."""
    given = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in given)
    if not given or not whole or len(set(given)) < len(given):
        raise ValueError(f"seeds is {value!r} but must be different whole numbers of zero or more")
    return tuple(given)


def threads(value: int | None) -> int | None:
    """How many cores torch may use; None lets it decide."""
    if value is not None and value < 1:
        raise ValueError(f"threads is {value} but must be at least 1; leave it out to let torch decide")
    return value


def named(table: Any, where: str, *, stored: bool = False) -> dict[str, Any]:
    """The entries of a table such as [methods]; an entry that is ``false``, as --set may make it, is left out.

    A ``stored`` recipe may have been written by the command line, which names attacks by their settings.
    """
    if isinstance(table, Mapping):
        table = {name: value for name, value in table.items() if value is not False}
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"{where} must be a table with at least one entry")
    _check_names(table, where, _ANY if stored else _NAME)
    return dict(table)


def different_rows(*tables: Iterable[str]) -> None:
    """Refuse one name in two tables of classifiers: it is the name of a row and of a folder."""
    names = [name.casefold() for table in tables for name in table]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two tables of methods, models and metrics have the name {twice!r}; rename one")


def _check_names(table: Mapping[str, Any], where: str, allowed: re.Pattern[str]) -> None:
    """Refuse names that differ by case alone or hold characters that folders or columns cannot."""
    names = [name.casefold() for name in table]
    for name in table:
        if names.count(name.casefold()) > 1:
            raise ValueError(
                f"{where} has {name!r} twice but for upper and lower case, which some disks cannot tell apart"
            )
        if not allowed.fullmatch(name):
            raise ValueError(f"{where} has the name {name!r}; use letters, digits, spaces and . _ + @ & - only")
