"""Every analysis has an example that works, a frozen result that reads well, and numbers with intervals."""

import doctest
from dataclasses import FrozenInstanceError, fields, is_dataclass
from importlib import import_module
from typing import get_type_hints

import pytest

from holdfast import analysis
from holdfast.members import names


@pytest.mark.parametrize("name", names(analysis))
def test_the_example_gives_what_it_shows(name):
    module = import_module(f"holdfast.analysis.{name}")
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(module, optionflags=options)
    assert results.attempted
    assert not results.failed
    assert ">>>" in getattr(module, name).__doc__


@pytest.mark.parametrize("name", names(analysis))
def test_the_result_is_frozen_and_has_intervals(name):
    module = import_module(f"holdfast.analysis.{name}")
    kind = get_type_hints(getattr(module, name))["return"]
    assert is_dataclass(kind)
    with pytest.raises(FrozenInstanceError):
        setattr(kind.__new__(kind), fields(kind)[0].name, None)
    assert kind.__repr__ is not object.__repr__
    found = [str(hint) for hint in get_type_hints(kind).values()]
    inner = [str(hint) for one in get_type_hints(kind).values() if is_dataclass(one) for hint in _hints(one)]
    assert any("Estimate" in hint or "Share" in hint for hint in (*found, *inner))


def _hints(kind):
    return [
        *get_type_hints(kind).values(),
        *(get_type_hints(v.func)["return"] for v in vars(kind).values() if hasattr(v, "func")),
    ]
