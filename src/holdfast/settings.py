"""Settings and arguments checked against their types: another type is refused in one sentence."""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

_WORDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
_EXAMPLES = {
    "Threat": "a Threat, e.g. Threat(LInf(), 8 / 255)",
    "Attack": "an attack, e.g. PGD(threat=Threat(LInf(), 8 / 255))",
    "Method": "a method, e.g. Plain()",
    "Module": "a torch.nn.Module",
}


def check_types(value: object) -> None:
    """Refuse a field of a dataclass whose value does not have the type of the field."""
    for name, hint in _hints(cast(Any, type(value))).items():
        given = getattr(value, name)
        if not _fits(given, hint):
            raise ValueError(f"{name} is {_shown(given)} but it must be {_words(hint)}")


def check_tensors(**given: object) -> None:
    """Refuse the first argument that is no tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__} but must be a tensor; write torch.as_tensor({name})")


def is_number(given: object) -> bool:
    """True for real numbers, those of numpy too, but not for True and False."""
    return isinstance(given, Real) and not isinstance(given, bool)


def is_size(given: object) -> bool:
    """True for whole numbers from 1."""
    return not isinstance(given, bool) and isinstance(given, Integral) and int(given) > 0


def path_of(given: object, name: str) -> Path:
    """A path that is given as such or as text; anything else is refused."""
    if not isinstance(given, str | Path) or not str(given):
        raise ValueError(f"{name} is {given!r} but must be a path, as text or as a pathlib.Path")
    return Path(given)


def check_numbers(value: object) -> None:
    """Refuse a field of a dataclass that is NaN, which no comparison finds."""
    for name in _hints(cast(Any, type(value))):
        if isinstance(given := getattr(value, name), float) and given != given:
            raise ValueError(f"{name} is nan but it must be a number")


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _fits(given: Any, hint: Any) -> bool:
    """True if a value has this type, or if the type is none that is checked, such as a function."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(given, one) for one in typing.get_args(hint))
    if origin is Literal:
        return given in typing.get_args(hint)
    if hint in (int, float):
        return isinstance(given, Integral if hint is int else Real) and not isinstance(given, bool)
    if origin is tuple and len(parts := typing.get_args(hint)) == 2 and parts[1] is Ellipsis:
        return isinstance(given, tuple | list) and all(_fits(one, parts[0]) for one in given)
    if not isinstance(hint, type) or origin is not None:
        return True
    if getattr(hint, "_is_protocol", False):  # what a protocol asks for is found out when it is used
        return not isinstance(given, str | int | float | None)
    return isinstance(given, hint)


def _words(hint: Any) -> str:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if typing.get_origin(hint) is tuple:
        return f"a sequence, each {_words(parts[0])}"
    if parts:
        return " or ".join(dict.fromkeys(_words(part) for part in parts))
    return _WORDS.get(hint) or _EXAMPLES.get(getattr(hint, "__name__", ""), "") or _named(hint)


def _named(hint: Any) -> str:
    return "None" if hint is type(None) else f"a {getattr(hint, '__name__', hint)}"


def _shown(given: Any) -> str:
    plain = str | int | float | None
    simple = isinstance(given, plain) or (isinstance(given, tuple | list) and all(isinstance(x, plain) for x in given))
    return repr(given) if simple else f"a {type(given).__name__}"
