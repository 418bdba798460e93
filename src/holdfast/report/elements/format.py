"""Numbers and names as text."""

import re
from collections.abc import Sequence

from holdfast.geometry import eps_text as eps_text

_COMMA = re.compile(r",(?![^\[{]*[\]}])")  # outside of lists and tables
_AT = re.compile(r" at \w+:\S+$")  # the threat that follows a name, as evaluations at several threats give it


def percent(value: float) -> str:
    """A proportion in percent, with one decimal."""
    return f"{100 * value:.1f}"


def points_text(value: float) -> str:
    """A difference of proportions in percentage points."""
    points = percent(value)
    return f"{points} point{'s' * (points != '1.0')}"


def range_text(values: Sequence[float]) -> str:
    """The range of proportions in percent, or the one value that all round to."""
    return " to ".join(dict.fromkeys(percent(value) for value in (min(values), max(values))))


def p_text(p: float) -> str:
    """A p value; very small ones are given as a bound."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def attack_words(name: str) -> tuple[str, str]:
    """The name of an attack and its settings in words, from a name as the command line takes it.

    >>> attack_words("pgd:steps=40,restarts=5,loss=logit_difference")
    ('pgd', '40 steps, 5 restarts, loss logit difference')

    A name that a recipe gives is returned as it is.
    """
    found = _AT.search(name)
    at = found[0] if found else ""
    kind, colon, rest = name.removesuffix(at).partition(":")
    settings = [part.partition("=") for part in _COMMA.split(rest)]
    if not colon or not all(key and equals and value for key, equals, value in settings):
        return name, ""
    return kind + at, ", ".join(_setting(key, value) for key, _, value in settings)


def attack_text(name: str) -> str:
    """The name of an attack in one line, with its settings in words."""
    kind, settings = attack_words(name)
    return f"{kind} ({settings})" if settings else kind


def _setting(key: str, value: str) -> str:
    words = value.replace("_", " ")
    return f"{words} {key}" if key in ("steps", "restarts") else f"{key} {words}"


def seeds_text(n: int) -> str:
    """The number of seeds in words."""
    return "one seed" if n == 1 else f"{n} seeds"


def listed(names: Sequence[str]) -> str:
    """Names as an enumeration: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plain(name: str) -> str:
    """A name that is safe in a terminal and in a cell of a Markdown table."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name).replace("|", "\\|")
