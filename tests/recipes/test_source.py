"""Raw recipes: bases below, changes on top."""

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
    """Everything that is no section, and the empty sections, with the way to it."""
    found = []
    for key, value in table.items():
        deep = isinstance(value, dict) and value
        found += leaves(value, (*path, key)) if deep else [((*path, key), value)]
    return found


@given(tables, tables)
def test_merging_is_setting_leaf_by_leaf(under: Any, over: Any) -> None:
    by_hand = copy.deepcopy(under)
    for (*parents, last), value in leaves(over):
        place = by_hand
        for part in parents:
            place[part] = place[part] if isinstance(place.get(part), dict) else {}
            place = place[part]
        if value != {} or not isinstance(place.get(last), dict):
            place[last] = value
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
def test_changes(change: str, path: list[str], value: object) -> None:
    table: dict[str, Any] = {"attacks": {"C&W": {"steps": 40, "step": 0.1}}}
    source.change(table, change)
    found: Any = table
    for part in path:
        found = found[part]
    assert found == value
    assert type(found) is type(value)
    assert table["attacks"]["C&W"]["step"] == 0.1  # what was not named is as before


@pytest.mark.parametrize("change", ["a", "", "=3", "a..b=1", ".a=1", "a.=1", '"a=3', "a'b=1"])
def test_changes_that_are_none(change: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form key=value, e.g. --set train.epochs=3"):
        source.change({}, change)


def test_a_change_inside_of_a_value() -> None:
    with pytest.raises(ValueError, match=r"--set 'seeds.first=1': seeds is not a section"):
        source.change({"seeds": [0]}, "seeds.first=1")


def test_a_name_alone_is_a_section() -> None:
    table = {"model": {"head": "hypersphere"}}
    source.change(table, "model.head.scale=5")
    assert table == {"model": {"head": {"name": "hypersphere", "scale": 5}}}


def test_a_base_is_looked_for_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "low.toml").write_text('name = "low"\nseeds = [5]\n[train]\nepochs = 7\nbatch = 9')
    (tmp_path / "deep" / "mid.toml").write_text('base = "low.toml"\n[train]\nepochs = 8')
    (tmp_path / "top.toml").write_text('base = "deep/mid.toml"\n[train]\nlr = 1')
    table = source.table(str(tmp_path / "top.toml"))
    assert table == {"name": "top", "seeds": [5], "train": {"epochs": 8, "batch": 9, "lr": 1}}


def test_a_base_among_the_recipes_that_come_along(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "quickstart"\nseeds = [3, 4]')
    table, below = source.table(str(tmp_path / "mine.toml")), source.table("quickstart")
    assert table == below | {"seeds": [3, 4], "name": "mine"}


def test_a_base_that_leads_back(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b.toml"')
    (tmp_path / "b.toml").write_text('base = "a.toml"')
    with pytest.raises(ValueError, match=r"based on itself: .*a.toml -> .*b.toml -> .*a.toml"):
        source.table(str(tmp_path / "a.toml"))


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_what_is_no_toml_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe .*bad\.toml is not valid TOML: "):
        source.table(str(path))


def test_missing_recipes() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no recipe file nowhere.toml"):
        source.table("nowhere.toml")
    with pytest.raises(ValueError, match=r"unknown recipe 'quickstrat'; did you mean 'quickstart'"):
        source.table("quickstrat")
