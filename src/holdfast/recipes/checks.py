"""Checks of what stands at the top of a recipe: its name, its seeds, its threads, the names of methods and attacks."""

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+@&-]*")


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


def named(table: Any, where: str) -> dict[str, Any]:
    """The entries of [methods] or [attacks]; one that is ``false`` is left out, so that a base or --set can do so."""
    if isinstance(table, Mapping):
        table = {name: value for name, value in table.items() if value is not False}
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"{where} must be a table with at least one entry")
    names = [name.casefold() for name in table]
    for name in table:
        if names.count(name.casefold()) > 1:
            raise ValueError(
                f"{where} has {name!r} twice but for upper and lower case, which some disks cannot tell apart"
            )
        if not _NAME.fullmatch(name):
            raise ValueError(f"{where} has the name {name!r}; use letters, digits, spaces and . _ + @ & - only")
    return dict(table)
