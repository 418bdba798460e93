"""`import holdfast` is light, and every public name is there and says what it is."""

import dataclasses
import inspect
import json
import subprocess
import sys

import pytest

import holdfast
from holdfast.recipes import kinds

HEAVY = {"typer", "plotly", "lightning", "lightning_fabric", "rich", "jinja2"}
LOADED = "import json, sys, holdfast; print(json.dumps(sorted(sys.modules)))"


def documented(name: str, member: object) -> bool:
    doc = inspect.getdoc(member) or ""
    generated = dataclasses.is_dataclass(member) and doc.startswith(f"{name}(")  # dataclass writes one if none is given
    return bool(doc.strip()) and not generated


def test_import_loads_no_cli_no_plotting_and_no_engine() -> None:
    out = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(out))
    assert "holdfast" in loaded
    assert not loaded & HEAVY


def test_public_names_resolve() -> None:
    assert holdfast.__all__
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


@pytest.mark.parametrize("kind", ["attack", "method"])
def test_what_a_recipe_can_name_a_program_can_too(kind: str) -> None:
    classes = [kinds.member(kind, name) for name in kinds.names(kind)]
    assert classes
    assert [it.__name__ for it in classes if getattr(holdfast, it.__name__, None) is not it] == []


def test_public_classes_and_functions_have_docstrings() -> None:
    members = {name: getattr(holdfast, name) for name in holdfast.__all__}
    named = {name: it for name, it in members.items() if inspect.isclass(it) or inspect.isroutine(it)}
    assert named
    assert [name for name, it in named.items() if not documented(name, it)] == []
