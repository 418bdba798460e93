"""Read back the JSON files of a run; a missing or damaged one is named, with what to do."""

import json
from pathlib import Path
from typing import Any, cast


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    found = _parsed(path, _text(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no object); remove {path.parent} and run again")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of one JSON object per line."""
    return [cast(dict[str, Any], _parsed(path, line)) for line in _text(path).splitlines()]


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; remove {path.parent} and run again")
    return path.read_text(encoding="utf-8")


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove {path.parent} and run again") from None
