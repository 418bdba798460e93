"""Choices made by timing, stored with the run: a resumed run goes on with the choices it began with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.records.atomic import write_text
from holdfast.records.stored import read_json

_FILE = "choices.json"


def choice(folder: Path, name: str, depends_on: list[Any], choose: Callable[[], Any]) -> Any:
    """The stored choice of this name, or a new one, stored, if there is none or it was made for something else.

    ``depends_on`` and the choice are JSON values.
    """
    path = folder / _FILE
    try:
        known = read_json(path)
    except (FileNotFoundError, ValueError):
        known = {}
    if known.get(name, {}).get("depends_on") != depends_on:
        known[name] = {"depends_on": depends_on, "chosen": choose()}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known, indent=1) + "\n")
    return known[name]["chosen"]
