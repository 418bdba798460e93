"""Threats written as text whose size cannot be meant."""

import pytest

from holdfast.recipes.build import build_threat


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("linf:8", r"threat: eps is 8 but inputs lie in \[0, 1\].*; write linf:8/255 for 8 gray levels"),
        ("linf:3:-1:1", r"eps is 3 but inputs lie in \[-1, 1\], so attacks could change them at will$"),
        ("l0:2.5", "eps is 2.5 but l0 counts pixels; give a whole number"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_threat(text, "threat")


@pytest.mark.parametrize("text", ["linf:1", "linf:inf", "linf:8:0:255", "l2:8", "l0:3", "l0:inf", "linf:2:-inf:inf"])
def test_other_sizes_are_accepted(text: str) -> None:
    assert build_threat(text, "threat").eps > 0
