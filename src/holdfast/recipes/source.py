"""The raw table of a recipe: read from its file, merged over its base recipes, changed by ``--set``."""

import re
import tomllib
from collections.abc import Container, Mapping, Sequence
from functools import reduce
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from holdfast.members import unknown
from holdfast.records.records import Records

Table = Mapping[str, Any]

_PART = r"""\s*(?:"[^"]+"|'[^']+'|[^\s.="'](?:[^.="']*[^\s.="'])?)\s*"""
STORED = "recipe.toml"
"""The file of a recipe in the folder of its results."""

_RECORDS = (
    "*/seed-*/records/facts.json",
    "*/k-*/seed-*/records/facts.json",
    "*/seed-*/inside/samples/records/facts.json",
)

_REMOVED: Mapping[str, Container[Any]] = {
    "save_every": range(1, 1 << 62),
    "signed": (False,),
    "squared": (False,),
}
"""Options that were removed, with the values for which removing them changes nothing."""

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


def current(value: Any) -> Any:
    """A stored table without removed options; one with another value stays and is refused later."""
    if not isinstance(value, Mapping):
        return value
    known = {key: item for key, item in value.items() if key not in _REMOVED or item not in _REMOVED[key]}
    return {key: current(item) for key, item in known.items()}


def results(name: str) -> Path | None:
    """The folder of results that a name stands for, which hold the recipe they were made with; else None."""
    return Path(name) if name not in names() and Path(name).is_dir() else None


def _layer(name: str) -> dict[str, Any]:
    file: Traversable = Path(name)
    if (folder := results(name)) is not None:
        if not (folder / STORED).is_file():
            return _of_records(folder)
        file = folder / STORED
    elif not name.endswith(".toml"):
        if name not in names():
            raise ValueError(unknown(f"recipe {name!r}", name, names()))
        file = _LIBRARY / f"{name}.toml"
    elif not file.is_file():
        raise FileNotFoundError(f"there is no recipe file {name}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {name} is not valid TOML: {error}") from None


def _of_records(folder: Path) -> dict[str, Any]:
    """The recipe that the newest records in a folder of results were made with."""
    files = [file for pattern in _RECORDS for file in folder.glob(pattern)]
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no results; name a recipe, or a folder that `holdfast run` has written"
        )
    newest = max(files, key=lambda file: file.stat().st_mtime)
    found: dict[str, Any] = current(Records.load(newest.parent).facts["recipe"])
    return found


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
        if table.get(part) is None:  # stored recipes list the tables that they do not have
            table.pop(part, None)
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
