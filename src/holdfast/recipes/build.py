"""Converts recipe tables to the frozen dataclasses that users construct, and back.

A table's keys are the fields of the dataclass. An unknown key is refused and the closest known key suggested, numbers
may be written as fractions ("8/255"), and an error names the key whose value is not allowed.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from math import inf, isfinite
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from holdfast.contracts import Attack, Loss, Method, Norm
from holdfast.geometry import NORMS, Threat
from holdfast.members import unknown
from holdfast.recipes import kinds

Table = Mapping[str, Any]

_FOLDERS = tuple(f"{folder.__name__}." for folder in kinds.FOLDERS.values())
_FRACTION = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*/\s*0*[1-9]\d*\s*")


def build(cls: type, table: Table, where: str, given: Table | None = None) -> Any:
    """Build a dataclass from a table; ``given`` holds values for fields that the table omits."""
    table = section(table, where)
    hints = typing.get_type_hints(cls)
    known = [f.name for f in fields(cls) if f.init]
    given = given or {}
    values: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    for key, value in table.items():
        if key not in known:
            raise ValueError(unknown(f"key {key!r} in {where}", key, known))
        values[key] = convert(hints[key], value, f"{where}.{key}", given)
    needed = [f.name for f in fields(cls) if f.init and f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ValueError(f"{where} needs {', '.join(missing)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def section(value: Any, where: str) -> dict[str, Any]:
    """A copy of a table of settings; any other value is refused."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table of settings but is {value!r}")
    return dict(value)


def convert(hint: Any, value: Any, where: str, given: Table) -> Any:
    """Convert a value to the type of its field; ``given`` holds defaults for attacks and methods inside it."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and types.NoneType in options:
        return None
    if Attack in options:
        return build_attack(value, where, given.get("threat"))
    if Method in options:
        return build_method(value, where, given.get("threat"), given.get("attack"))
    if Threat in options:
        return build_threat(value, where)
    if Norm in options:
        return build_norm(value, where)
    if any(option == Loss for option in options):
        return build_loss(value, where)
    for option in options:
        if is_dataclass(option) and isinstance(option, type):
            return build(option, value, where, given)
    return scalar(hint, value, where)


def scalar(hint: Any, value: Any, where: str) -> Any:
    """A number, text, choice or list, checked by pydantic; fractions count as numbers."""
    value = _divided(value) if _takes(float, hint) else value
    if isinstance(value, bool) and not _takes(bool, hint):  # pydantic would convert true to 1
        raise ValueError(f"{where} is {str(value).lower()}: this key does not take true or false")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(f"{where} is {value!r}: {reason[0].lower()}{reason[1:]}") from None
    except PydanticSchemaGenerationError:  # e.g. a model, if transfer is used outside [attacks]
        raise ValueError(f"{where} is {value!r} but a recipe has no way to write it; leave it out") from None


def _takes(kind: type, hint: Any) -> bool:
    return hint is kind or any(_takes(kind, inner) for inner in typing.get_args(hint))


def _divided(value: Any) -> Any:
    """Convert fractions such as "8/255", also inside lists, to numbers; other values are unchanged."""
    if isinstance(value, list | tuple):
        return [_divided(item) for item in value]
    if not (isinstance(value, str) and _FRACTION.fullmatch(value)):
        return value
    numerator, _, denominator = value.partition("/")
    return float(numerator) / float(denominator)


def build_threat(value: Any, where: str) -> Threat:
    """A threat from ``"linf:8/255"``, with the box as in ``"linf:8/255:0:1"``, or from a table with norm and eps."""
    written = isinstance(value, str)
    if isinstance(value, str):
        parts = value.split(":")
        if len(parts) not in (2, 4):
            raise ValueError(f"{where} is {value!r} but has the form norm:eps or norm:eps:low:high, e.g. linf:8/255")
        value = dict(zip(("norm", "eps", "low", "high"), parts, strict=False))
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table or a text such as 'linf:8/255' but is {value!r}")
    norm, numbers = build_norm(value.get("norm", ""), where), {k: v for k, v in value.items() if k != "norm"}
    threat = cast(Threat, build(Threat, numbers, where, {"norm": norm}))
    if written:  # tables also come from stored results, which must stay readable
        _check_size(threat, where)
    return threat


def _check_size(threat: Threat, where: str) -> None:
    """Refuse an eps that was probably meant in gray levels, and fractions of pixels."""
    eps, width = threat.eps, threat.high - threat.low
    if threat.norm.name == "linf" and width < eps < inf:
        meant = f"; write linf:{eps:g}/255 for {eps:g} gray levels" if width == 1 else ""
        raise ValueError(
            f"{where}: eps is {eps:g} but inputs lie in [{threat.low:g}, {threat.high:g}], so attacks could change "
            f"them at will{meant}"
        )
    if threat.norm.name == "l0" and eps < inf and eps != int(eps):
        raise ValueError(f"{where}: eps is {eps:g} but l0 counts pixels; give a whole number")


def build_norm(value: Any, where: str) -> Norm:
    """A norm from its name."""
    name = str(value).lower()
    if name not in NORMS:
        raise ValueError(unknown(f"norm {name!r} in {where}", name, NORMS))
    return NORMS[name]


def build_attack(value: Any, where: str, threat: Threat | None) -> Attack:
    """An attack from a table with its name; the key ``eps`` overrides the radius of the recipe's threat."""
    table = section({"name": value} if isinstance(value, str) else value, where)
    cls = member("attack", table.pop("name", where.rpartition(".")[2]), where)
    if "eps" in table and threat is not None and "threat" in [field.name for field in fields(cls)]:
        table["threat"] = {"norm": threat.norm.name, "eps": table.pop("eps"), "low": threat.low, "high": threat.high}
    return cast(Attack, build(cls, table, where, {} if threat is None else {"threat": threat}))


def build_method(table: Table, where: str, threat: Threat | None, attack: Attack | None) -> Method:
    """A method from a table with its name; ``attack`` is the default of methods that craft."""
    table = section(table, where)
    cls = member("method", table.pop("name", where.rpartition(".")[2]), where)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a method may draw initial parameters, which must not change when a run is restarted
        given = {"threat": threat, "attack": attack}
        return cast(
            Method, build(cls, table, where, {name: value for name, value in given.items() if value is not None})
        )


def member(kind: str, name: Any, where: str) -> type:
    """The class of this name; an unknown name is refused with the key that holds it."""
    try:
        return kinds.member(kind, str(name))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def build_loss(value: Any, where: str) -> Loss:
    """A loss from its name, or from a table with its name and settings."""
    table = section({"name": value} if isinstance(value, str) else value, where)
    name, known = str(table.pop("name", "")), kinds.losses()
    if name not in known:
        raise ValueError(unknown(f"loss {name!r} in {where}", name, known))
    hints = typing.get_type_hints(known[name])
    settings = [key for key in inspect.signature(known[name]).parameters if key not in ("out", "rows")]
    for key in table:
        if key not in settings:
            raise ValueError(unknown(f"key {key!r} in {where}", key, settings))
    chosen = {key: scalar(hints[key], item, f"{where}.{key}") for key, item in table.items()}
    return cast(Loss, partial(known[name], **chosen) if chosen else known[name])


def table_of(value: Any) -> Any:
    """The recipe form of a value: the table from which :func:`build` builds it again."""
    if isinstance(value, Threat):
        return {"norm": value.norm.name, "eps": value.eps, "low": value.low, "high": value.high}
    if type(value) in [type(norm) for norm in NORMS.values()]:
        return value.name
    if isinstance(value, partial):
        return {"name": value.func.__name__, **{k: table_of(v) for k, v in value.keywords.items()}}
    if is_dataclass(value) and not isinstance(value, type):
        named = {"name": kinds.name_of(value)} if type(value).__module__.startswith(_FOLDERS) else {}
        return named | {f.name: table_of(getattr(value, f.name)) for f in fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(key): table_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [table_of(item) for item in value]
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return getattr(value, "__name__", type(value).__name__)
    return value


def json_table(value: Any) -> Any:
    """The recipe form of a value as JSON; inf and nan, which JSON cannot hold, are written as text."""
    value = table_of(value)
    if isinstance(value, Mapping):
        return {key: json_table(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_table(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value
