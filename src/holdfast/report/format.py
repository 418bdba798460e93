"""Numbers and names as text."""

from collections.abc import Sequence

from holdfast.geometry import eps_text as eps_text


def percent(value: float) -> str:
    """A proportion in percent, with one decimal."""
    return f"{100 * value:.1f}"


def p_text(p: float) -> str:
    """A p value; very small ones are given as a bound."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def seeds_text(n: int) -> str:
    """The number of seeds in words."""
    return "one seed" if n == 1 else f"{n} seeds"


def listed(names: Sequence[str]) -> str:
    """Names as an enumeration: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plain(name: str) -> str:
    """A name that is safe in a terminal and in a cell of a Markdown table."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name).replace("|", "\\|")
