"""What all figures share, as plotly's plain dictionaries; page.js sets the colors that depend on light or dark."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.report.table import Cell

Trace = dict[str, Any]

# each at least 3:1 against the light and the dark background of the page
COLORS = ("#2f7fd8", "#d9622b", "#149478", "#b355c7", "#c08a00", "#d64a73", "#6a78d1", "#5e8c31")
STAGE_COLORS = ("#7a8794", "#2f979e", "#a0743c", "#8d6fc0", "#b8607f", "#6f8f40", "#4f7fb0", "#bb6f5b")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star")


@dataclass(frozen=True)
class Plot:
    """A figure with its title and a text alternative; a ``wide`` plot takes the full width of the page."""

    title: str
    alt: str
    figure: dict[str, Any]
    wide: bool = False


@dataclass(frozen=True)
class Mark:
    """The color and the symbol of one name in every figure."""

    color: str
    symbol: str


def marks(names: Iterable[str], palette: Sequence[str] = COLORS) -> dict[str, Mark]:
    """A color and a symbol for each name, so that no line relies on color alone."""
    distinct = enumerate(dict.fromkeys(names))
    return {name: Mark(palette[i % len(palette)], SYMBOLS[i % len(SYMBOLS)]) for i, name in distinct}


def colors(names: Iterable[str], palette: Sequence[str] = COLORS) -> dict[str, str]:
    """The color of each name alone."""
    return {name: mark.color for name, mark in marks(names, palette).items()}


def literal(name: str) -> str:
    """A name escaped for plotly, which interprets some HTML in every text."""
    return html.escape(name, quote=False)


def scatter(name: str, x: Sequence[Any], y: Sequence[float | None], mode: str = "lines+markers") -> Trace:
    """Points or lines with a name for the legend."""
    return {"type": "scatter", "mode": mode, "name": literal(name), "x": list(x), "y": list(y)}


def error_bars(cells: Sequence[Cell], width: int = 3) -> dict[str, Any]:
    """Bars over the intervals of cells that were measured, in percent."""
    up = [100 * (cell.high - cell.mean) for cell in cells]
    down = [100 * (cell.mean - cell.low) for cell in cells]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": width}


def figure(traces: list[Trace], layout: dict[str, Any]) -> dict[str, Any]:
    """A figure with the margins of the page; ``layout`` has precedence."""
    margin = {"l": 56, "r": 16, "t": 16, "b": 48}
    return {"data": traces, "layout": {"margin": margin, "hovermode": "closest", **layout}}


def curve_figure(traces: list[Trace], x: str, y: str) -> dict[str, Any]:
    """A figure of percentages against a length, with its legend below."""
    layout = {
        "xaxis": {"title": {"text": literal(x)}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y}, "range": [-2, 102]},
        "legend": {"orientation": "h", "y": -0.2},
        "height": 440,
    }
    return figure(traces, layout)
