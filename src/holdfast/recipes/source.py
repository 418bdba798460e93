"""The raw table of a recipe: read from its file, merged over its base recipes, changed by ``--set``."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from shlex import quote
from typing import Any

from holdfast.members import unknown
from holdfast.recipes import toml

Table = Mapping[str, Any]

_PART = r"""\s*(?:"[^"]+"|'[^']+'|[^\s.="'](?:[^.="']*[^\s.="'])?)\s*"""
_LIBRARY = files("holdfast.recipes") / "library"
_CHANGE = re.compile(rf"({_PART}(?:\.{_PART})*)=\s*(.*?)\s*", re.DOTALL)


def names() -> list[str]:
    """The recipes that are part of holdfast."""
    files = _LIBRARY.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def table(name: str) -> dict[str, Any]:
    """The raw table of a recipe, merged over its base, the base of that one, and so on."""
    layers, seen = [_layer(name)], [name]
    layers[0].setdefault("name", Path(name).stem)
    while (base := layers[-1].pop("base", None)) is not None:
        path = Path(seen[-1]).parent / str(base)  # paths of base files are relative to the file that names them
        seen.append(str(path) if path.suffix == ".toml" else str(base))
        if seen[-1] in seen[:-1]:
            raise ValueError(f"recipe {name} is based on itself: {' -> '.join(seen)}")
        layers.append(_layer(seen[-1]))
    return reduce(merge, reversed(layers))


def changed(name: str, changes: Sequence[str]) -> dict[str, Any]:
    """The raw table of a recipe with ``key=value`` changes applied."""
    result = table(name)
    for assignment in changes:
        change(result, assignment)
    return result


def without(attacks: Iterable[str]) -> str:
    """The command-line options that remove these attacks from a recipe, quoted for a shell."""
    return " ".join(f"--set {quote(f'attacks.{toml.key(name)}=false')}" for name in attacks)


def _layer(name: str) -> dict[str, Any]:
    file: Traversable = Path(name)
    if not name.endswith(".toml"):
        if name not in names():
            raise ValueError(unknown(f"recipe {name!r}", name, names()))
        file = _LIBRARY / f"{name}.toml"
    elif not file.is_file():
        raise FileNotFoundError(f"there is no recipe file {name}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {name} is not valid TOML: {error}") from None


def merge(under: Table, over: Table) -> dict[str, Any]:
    """Merge ``over`` into ``under``: sections are merged recursively, other values are replaced."""
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def change(table: dict[str, Any], assignment: str) -> None:
    """Apply one ``key=value``: a dotted key, whose parts are quoted if they contain dots, and a TOML value or text."""
    match = _CHANGE.fullmatch(assignment)
    if not match:
        raise ValueError(f"--set {assignment!r} is not of the form key=value, e.g. --set train.epochs=3")
    path, text = match.groups()
    *parents, last = parts(path)
    for part in parents:
        if isinstance(table.get(part), str):  # a name is short for a section that holds only a name
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set {assignment!r}: {part} is not a section")
    table[last] = value(text)


def parts(path: str) -> list[str]:
    """The parts of a dotted key, without quotes."""
    return [part.strip().strip("\"'") for part in re.findall(_PART, path)]


def value(text: str) -> Any:
    """Parse a command-line value as TOML; if that fails, it is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
