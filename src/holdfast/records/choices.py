"""Choices made by timing, stored with the run so that a resumed run uses the same ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.records.atomic import write_text
from holdfast.records.files import read_json

_FILE = "choices.json"


def choice(folder: Path, name: str, depends_on: list[Any], choose: Callable[[], Any]) -> Any:
    """The stored choice called ``name``; without one that was made for ``depends_on``, ``choose`` makes and stores one.

    ``depends_on`` and the choice are JSON values.
    """
    path = folder / _FILE
    try:
        stored = read_json(path)
    except (FileNotFoundError, ValueError):
        stored = {}
    if stored.get(name, {}).get("depends_on") != depends_on:
        stored[name] = {"depends_on": depends_on, "chosen": choose()}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1) + "\n")
    return stored[name]["chosen"]
