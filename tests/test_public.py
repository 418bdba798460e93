"""``import holdfast`` is light, and every public name exists and has a docstring."""

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.recipes import kinds

HEAVY = {"typer", "plotly", "lightning", "lightning_fabric", "rich", "jinja2"}
LOADED = "import json, sys, holdfast; print(json.dumps(sorted(sys.modules)))"


def documented(name: str, member: object) -> bool:
    doc = inspect.getdoc(member) or ""
    generated = dataclasses.is_dataclass(member) and doc.startswith(
        f"{name}("
    )  # dataclass generates one if none is given
    return bool(doc.strip()) and not generated


def test_import_loads_neither_the_command_line_nor_plotting_nor_attacks() -> None:
    out = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(out))
    assert "holdfast" in loaded
    assert not loaded & HEAVY
    assert not [name for name in loaded if name.startswith(("holdfast.attacks.", "holdfast.methods."))]


def test_public_names_resolve() -> None:
    assert holdfast.__all__
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


@pytest.mark.parametrize("kind", ["attack", "method"])
def test_every_attack_and_method_is_a_public_name(kind: str) -> None:
    classes = [kinds.member(kind, name) for name in kinds.names(kind)]
    assert classes
    assert [it.__name__ for it in classes if getattr(holdfast, it.__name__, None) is not it] == []
    assert {it.__name__ for it in classes} <= set(holdfast.__all__) <= set(dir(holdfast))


def test_star_import_gives_all_public_names() -> None:
    names: dict[str, object] = {}
    exec("from holdfast import *", names)
    assert set(names) - {"__builtins__"} == set(holdfast.__all__)


@pytest.mark.parametrize("name", ["Pgd", "pgd", "PGD2", "Ascent", "_Loop"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'holdfast' has no attribute '{name}'"):
        getattr(holdfast, name)


def test_type_checkers_are_given_names_that_exist() -> None:
    """The list may lack a new attack, which then is of type Any to a type checker; it may not name a missing one."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    listed = [(node.module, alias.name) for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert len(listed) >= 18
    assert [name for module, name in listed if getattr(holdfast, name).__module__ != module] == []


def test_public_classes_and_functions_have_docstrings() -> None:
    members = {name: getattr(holdfast, name) for name in holdfast.__all__}
    named = {name: it for name, it in members.items() if inspect.isclass(it) or inspect.isroutine(it)}
    assert named
    assert [name for name, it in named.items() if not documented(name, it)] == []
