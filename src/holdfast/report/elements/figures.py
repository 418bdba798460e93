"""What all figures share, as plotly's plain dictionaries; page.js sets the colors that depend on light or dark."""

import html
from collections.abc import Iterable, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from holdfast.report.elements.table import Cell

Trace = dict[str, Any]

# each at least 3:1 against the light and the dark background of the page
COLORS = ("#2f7fd8", "#d9622b", "#149478", "#b355c7", "#c08a00", "#d64a73", "#6a78d1", "#5e8c31")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star")


@dataclass(frozen=True)
class Plot:
    """A figure with its title, a text alternative, and a caption that says what good looks like.

    A ``wide`` plot takes the full width of the page.
    """

    title: str
    alt: str
    figure: dict[str, Any]
    wide: bool = False
    caption: str = ""


@dataclass(frozen=True)
class Mark:
    """The color and the symbol of one name in every figure."""

    color: str
    symbol: str


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """A color and a symbol for each name, so that no line relies on color alone."""
    distinct = list(dict.fromkeys(names))
    looks = zip(palette(len(distinct)), cycle(SYMBOLS), strict=False)
    return {name: Mark(*look) for name, look in zip(distinct, looks, strict=False)}


def colors(names: Iterable[str]) -> dict[str, str]:
    """The color of each name alone."""
    return {name: mark.color for name, mark in marks(names).items()}


def palette(n: int) -> tuple[str, ...]:
    """n different colors; those after the first eight are computed, with hues that are far apart."""
    return (*COLORS, *(_computed(i) for i in range(n - len(COLORS))))[:n]


def _computed(i: int) -> str:
    """A color with a luminance that stands out in light and dark."""
    hue, luminance = (0.09 + i * 0.618034) % 1, (0.18, 0.26, 0.22)[i % 3]
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        rgb = hls_to_rgb(hue, middle, (0.75, 0.4)[i // 3 % 2])
        low, high = (middle, high) if _luminance(rgb) < luminance else (low, middle)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _luminance(rgb: tuple[float, float, float]) -> float:
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
