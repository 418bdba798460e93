"""The examples in the docstrings of all analyses."""

import doctest
from importlib import import_module

import pytest

from holdfast import analysis
from holdfast.members import names


@pytest.mark.parametrize("name", names(analysis))
def test_the_example_gives_what_it_shows(name):
    if name == "projection":
        pytest.importorskip("openTSNE")
    module = import_module(f"holdfast.analysis.{name}")
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(module, optionflags=options)
    assert results.attempted
    assert not results.failed
