"""Raw recipe tables: base recipes and changes by --set."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recipes import source

keys = st.text("ab", min_size=1, max_size=2)
numbers = st.integers(0, 9)
tables = st.recursive(
    st.dictionaries(keys, numbers, max_size=3), lambda t: st.dictionaries(keys, t | numbers, max_size=3), max_leaves=8
)


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """All values and empty sections, each with its path."""
    found = []
    for key, value in table.items():
        deep = isinstance(value, dict) and value
        found += leaves(value, (*path, key)) if deep else [((*path, key), value)]
    return found


@given(tables, tables)
def test_merge_equals_setting_every_leaf(under: Any, over: Any) -> None:
    by_hand = copy.deepcopy(under)
    for (*parents, last), value in leaves(over):
        target = by_hand
        for part in parents:
            target[part] = target[part] if isinstance(target.get(part), dict) else {}
            target = target[part]
        if value != {} or not isinstance(target.get(last), dict):
            target[last] = value
    before = copy.deepcopy((under, over))
    assert source.merge(under, over) == by_hand
    assert (under, over) == before


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("a=1", ["a"], 1),
        ("a.b.c=0.5", ["a", "b", "c"], 0.5),
        ("train.epochs = 3", ["train", "epochs"], 3),
        ("a=true", ["a"], True),
        ("seeds=[0, 1]", ["seeds"], [0, 1]),
        ("threat.eps=8/255", ["threat", "eps"], "8/255"),
        ("title=Hello, world", ["title"], "Hello, world"),
        ('title="a = b"', ["title"], "a = b"),
        ("a={b = 1}", ["a"], {"b": 1}),
        ("a=", ["a"], ""),
        ("attacks.C&W.steps=3", ["attacks", "C&W", "steps"], 3),
        ('attacks."C&W".steps=3', ["attacks", "C&W", "steps"], 3),
        ('attacks."PGD-40 x 5".steps=3', ["attacks", "PGD-40 x 5", "steps"], 3),
        ("attacks.PGD-40 x 5.steps=3", ["attacks", "PGD-40 x 5", "steps"], 3),
        ("attacks.'v1.2'.steps=3", ["attacks", "v1.2", "steps"], 3),
        ('attacks."a=b".steps=3', ["attacks", "a=b", "steps"], 3),
        ("data.name=npz:/some/where=here.npz", ["data", "name"], "npz:/some/where=here.npz"),
    ],
)
def test_changes_set_the_named_key(change: str, path: list[str], value: object) -> None:
    table: dict[str, Any] = {"attacks": {"C&W": {"steps": 40, "step": 0.1}}}
    source.change(table, change)
    found: Any = table
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)
    assert table["attacks"]["C&W"]["step"] == 0.1  # other keys are unchanged


@pytest.mark.parametrize("change", ["a", "", "=3", "a..b=1", ".a=1", "a.=1", '"a=3', "a'b=1"])
def test_malformed_changes_are_refused(change: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form key=value, e.g. --set train.epochs=3"):
        source.change({}, change)


def test_change_inside_a_value_that_is_no_section_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--set 'seeds.first=1': seeds is not a section"):
        source.change({"seeds": [0]}, "seeds.first=1")


def test_change_below_a_name_turns_it_into_a_section() -> None:
    table = {"model": {"head": "hypersphere"}}
    source.change(table, "model.head.scale=5")
    assert table == {"model": {"head": {"name": "hypersphere", "scale": 5}}}


def test_path_of_a_base_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "low.toml").write_text('name = "low"\nseeds = [5]\n[train]\nepochs = 7\nbatch = 9')
    (tmp_path / "deep" / "mid.toml").write_text('base = "low.toml"\n[train]\nepochs = 8')
    (tmp_path / "top.toml").write_text('base = "deep/mid.toml"\n[train]\nlr = 1')
    table = source.table(str(tmp_path / "top.toml"))
    assert table == {"name": "top", "seeds": [5], "train": {"epochs": 8, "batch": 9, "lr": 1}}


def test_base_can_be_a_recipe_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "quickstart"\nseeds = [3, 4]')
    table, below = source.table(str(tmp_path / "mine.toml")), source.table("quickstart")
    assert table == below | {"seeds": [3, 4], "name": "mine"}


def test_circular_bases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b.toml"')
    (tmp_path / "b.toml").write_text('base = "a.toml"')
    with pytest.raises(ValueError, match=r"based on itself: .*a.toml -> .*b.toml -> .*a.toml"):
        source.table(str(tmp_path / "a.toml"))


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_invalid_toml_is_refused_with_the_name_of_its_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe .*bad\.toml is not valid TOML: "):
        source.table(str(path))


def test_missing_recipes_are_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no recipe file nowhere.toml"):
        source.table("nowhere.toml")
    with pytest.raises(ValueError, match=r"unknown recipe 'quickstrat'; did you mean 'quickstart'"):
        source.table("quickstrat")
