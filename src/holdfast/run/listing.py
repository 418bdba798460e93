"""What `holdfast list` tells: names that recipes can use, with a sentence on each."""

import inspect
from collections.abc import Callable, Mapping

from holdfast.recipes import kinds, source, toml
from holdfast.recipes.certificate import learners

Told = list[tuple[str, str]]


def _classes(kind: str) -> Told:
    return [_told(name, kinds.member(kind, name)) for name in kinds.names(kind)]


def _parts(kind: str) -> Told:
    """The classes of a part of models, with the options that `holdfast show` leaves out where they are not given."""
    return [(name, f"{words}{_options(kinds.member(kind, name))}") for name, words in _classes(kind)]


def _options(cls: type) -> str:
    defaults = {name: option.default for name, option in inspect.signature(cls).parameters.items()}
    said = [f"{name} = {toml.value(it)}" for name, it in defaults.items() if it not in (None, inspect.Parameter.empty)]
    return f" Options: {', '.join(said)}." if said else ""


def _told(name: str, cls: type) -> tuple[str, str]:
    return name, (cls.__doc__ or "").strip().splitlines()[0].replace("``", "")


def _data() -> Told:
    from holdfast import data

    return [(name, data.about(name)) for name in data.names()]


def _recipes() -> Told:
    return [(name, str(source.table(name).get("description", ""))) for name in source.names()]


KINDS: Mapping[str, Callable[[], Told]] = {
    "attacks": lambda: _classes("attack"),
    "methods": lambda: _classes("method"),
    "models": lambda: _parts("encoder"),
    "heads": lambda: _parts("head"),
    "learners": lambda: [_told(name, cls) for name, cls in learners().items()],
    "data": _data,
    "recipes": _recipes,
}
