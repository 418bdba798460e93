"""A page: a list of sections rendered to one HTML file that needs no network and escapes every name."""

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from holdfast.records.files import write_text
from holdfast.report.elements.figures import Plot
from holdfast.report.elements.pictures import ImageGrid
from holdfast.report.elements.table import Table
from holdfast.report.explorer import Explorer


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a page. All fields but ``id`` and ``title`` are optional; the page shows those that are given.

    ``sentences`` explain how to read the section, ``legend`` maps names to colors, ``code`` is preformatted text.
    ``findings`` say in sentences what the numbers show. The top of the page shows the ``warnings`` of all sections. A
    section that is ``in_text`` also appears in the terminal and in Markdown, with its tables that are not folded.
    """

    id: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    legend: Mapping[str, str] = field(default_factory=dict)
    plots: Sequence[Plot] = ()
    explorers: Sequence[Explorer] = ()
    images: Sequence[ImageGrid] = ()
    code: str = ""
    findings: Sequence[str] = ()
    warnings: Sequence[str] = ()
    in_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The first screen: the question, its ``answer`` in sentences, one figure, and what ``changes`` the answer.

    ``terms`` explain the names that the page uses.
    """

    question: str
    answer: Sequence[str]
    plot: Plot | None = None
    changes: Sequence[str] = ()
    terms: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A title, the first screen, short ``facts`` such as the threat, the sections in their order, and a footer."""

    name: str
    title: str
    opening: Opening
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    footer: str = ""

    @property
    def plots(self) -> list[Plot]:
        """All figures, in the order in which the page shows them."""
        first = [] if self.opening.plot is None else [self.opening.plot]
        return [*first, *(plot for section in self.sections for plot in section.plots)]

    @property
    def explorers(self) -> list[Explorer]:
        """All explorers, in the order in which the page shows them."""
        return [explorer for section in self.sections for explorer in section.explorers]


def write_page(path: Path, page: Page) -> None:
    """Write a page as one self-contained file that opens from disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(page))


def render(page: Page) -> str:
    """A page as HTML."""
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [plot.figure | {"filename": f"{page.name} {plot.title}"} for plot in page.plots]
    script, plotly = _script("\n".join(map(_resource, ("page.js", "explorer.js")))), get_plotlyjs()
    data = {"figures": figures, "explorers": [explorer.data for explorer in page.explorers]}
    values = {"page": page, "data": embedded(data), "style": Markup(_resource("page.css"))}
    scripts = {"script": script, "plotly": packed(plotly), "hashes": Markup(" ").join(map(_hash, (script, plotly)))}
    return environment.get_template("page.html").render(values, **scripts)


def embedded(value: object) -> Markup:
    """JSON that can stand in a script element: no name in it can end the element."""
    data = json.dumps(value, allow_nan=False)
    return Markup(data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def packed(source: str) -> str:
    """A script compressed as text for page.js, which unpacks it: plotly takes 2 instead of 5 MB."""
    return b64encode(gzip.compress(source.encode(), mtime=0)).decode()


def _script(source: str) -> Markup:
    return Markup(source.replace("</script", "<\\/script"))


def _hash(source: str) -> Markup:
    # the page allows these two scripts and no network address, so a name that escaped its quotes could run nothing
    return Markup(f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'")


def _resource(name: str) -> str:
    return files("holdfast.report").joinpath("assets", name).read_text("utf-8")
