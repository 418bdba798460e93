"""The raw table of a recipe: read from its file, laid over the one it is based on, changed by ``--set``."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib.resources import files
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
    """The recipes that come with holdfast."""
    found = _LIBRARY.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in found if file.name.endswith(".toml"))


def table(name: str) -> dict[str, Any]:
    """The raw table of a recipe, laid over the one it is based on, that over its own, and so on."""
    layers, seen = [_layer(name)], [name]
    layers[0].setdefault("name", Path(name).stem)
    while (based := layers[-1].pop("base", None)) is not None:
        beside = Path(seen[-1]).parent / str(based)  # a base file is looked for beside the file that names it
        seen.append(str(beside) if beside.suffix == ".toml" else str(based))
        if seen[-1] in seen[:-1]:
            raise ValueError(f"recipe {name} is based on itself: {' -> '.join(seen)}")
        layers.append(_layer(seen[-1]))
    return reduce(merge, reversed(layers))


def changed(name: str, changes: Sequence[str]) -> dict[str, Any]:
    """The raw table of a recipe with ``key=value`` changes applied."""
    found = table(name)
    for asked in changes:
        change(found, asked)
    return found


def without(attacks: Iterable[str]) -> str:
    """The options that leave these attacks out of a recipe, as a shell takes them."""
    return " ".join(f"--set {quote(f'attacks.{toml.key(name)}=false')}" for name in attacks)


def _layer(name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(name))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {name} is not valid TOML: {error}") from None


def _text(name: str) -> str:
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"there is no recipe file {name}")
        return Path(name).read_text(encoding="utf-8")
    if name in names():
        return (_LIBRARY / f"{name}.toml").read_text(encoding="utf-8")
    raise ValueError(unknown(f"recipe {name!r}", name, names()))


def merge(under: Table, over: Table) -> dict[str, Any]:
    """One table laid over another: sections are merged, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def change(table: dict[str, Any], asked: str) -> None:
    """Apply one ``key=value``; the key is dotted, parts that hold dots are quoted; the value is TOML or text."""
    found = _CHANGE.fullmatch(asked)
    if not found:
        raise ValueError(f"--set {asked!r} is not of the form key=value, e.g. --set train.epochs=3")
    path, text = found.groups()
    *parents, last = parts(path)
    for part in parents:
        if isinstance(table.get(part), str):  # a name alone is short for a section with nothing but a name
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set {asked!r}: {part} is not a section")
    table[last] = value(text)


def parts(path: str) -> list[str]:
    """The parts of a dotted key; those that hold dots are quoted."""
    return [part.strip().strip("\"'") for part in re.findall(_PART, path)]


def value(text: str) -> Any:
    """What is written on the command line: TOML where it is, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
