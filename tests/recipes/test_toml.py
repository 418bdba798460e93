"""Written TOML is read back unchanged."""

import math
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recipes import toml

text = st.text(st.characters(exclude_categories=["Cs"]))  # TOML cannot hold lone surrogates
plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | text
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4), max_leaves=6)
tables = st.recursive(
    st.dictionaries(text, values, max_size=4),
    lambda inner: st.dictionaries(text, values | inner, max_size=4),
    max_leaves=6,
)


@given(tables)
def test_written_content_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


def test_types_survive_a_round_trip() -> None:
    table = {"whole": 1, "real": 1.0, "yes": True, "text": "1", "small": 1e-5, "large": 1e300, "list": [1, 1.0, "1"]}
    read = tomllib.loads(toml.dumps(table))
    assert {name: type(value) for name, value in read.items()} == {name: type(value) for name, value in table.items()}
    assert [type(item) for item in read["list"]] == [int, float, str]


def test_infinite_and_nan_numbers_survive_a_round_trip() -> None:
    read = tomllib.loads(toml.dumps({"most": math.inf, "least": -math.inf, "none": math.nan}))
    assert read["most"] == math.inf
    assert read["least"] == -math.inf
    assert math.isnan(read["none"])


def test_none_is_omitted_also_in_sections() -> None:
    assert tomllib.loads(toml.dumps({"a": None, "b": {"c": None, "d": 1}, "e": {}})) == {"b": {"d": 1}, "e": {}}


def test_values_are_written_before_sections_in_any_order() -> None:
    table = {"section": {"inner": {"x": 1}, "y": 2}, "after": 3}
    assert tomllib.loads(toml.dumps(table)) == table
