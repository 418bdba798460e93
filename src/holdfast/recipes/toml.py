"""Writes tables as TOML, which the standard library can only read."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML; entries that are None are omitted."""
    return "\n".join(_lines(table, "")).strip() + "\n"


def _lines(table: Mapping[str, Any], path: str) -> list[str]:
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{key(name)} = {value(item)}" for name, item in plain.items()]
    for name, item in table.items():
        if isinstance(item, Mapping):
            inner = f"{path}.{key(name)}" if path else key(name)
            lines += ["", f"[{inner}]", *_lines(item, inner)]
    return lines


def key(name: str) -> str:
    """A key in the syntax of TOML and --set: quoted if needed."""
    letters = name.replace("-", "").replace("_", "")
    return name if letters.isascii() and letters.isalnum() else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # must be escaped in TOML, unlike in JSON


def value(given: Any) -> str:
    """A value in the syntax of TOML and --set."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, list | tuple):
        return f"[{', '.join(value(item) for item in given)}]"
    if isinstance(given, float) and not math.isfinite(given):
        return str(given)
    return _text(given) if isinstance(given, str) else repr(given)
