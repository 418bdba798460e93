"""`holdfast list`: everything that recipes can name, with one sentence each."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast import zoo
from holdfast.members import first_paragraph, unknown
from holdfast.recipes import kinds, source, toml
from holdfast.recipes.tables.certify import learners

Listing = list[tuple[str, str]]
"""Names, each with one sentence."""


def list_(
    kind: Annotated[
        str, typer.Argument(help="attacks, methods, certifiers, models, heads, learners, data, recipes or zoo.")
    ] = "recipes",
) -> None:
    """List everything that recipes can name, or the trained models of the zoo; by default the recipes themselves."""
    if kind not in KINDS:
        raise ValueError(unknown(f"kind {kind!r}", kind, KINDS))
    console = Console()
    if not console.is_terminal:  # one line each, for grep
        for name, sentence in KINDS[kind]():
            print(f"{name}  {sentence}")
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, sentence in KINDS[kind]():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(sentence))
    console.print(table)


def _classes(kind: str) -> Listing:
    return [(name, first_paragraph(kinds.member(kind, name))) for name in kinds.names(kind)]


def _parts(kind: str) -> Listing:
    """Encoders or heads with the defaults of their options, which `holdfast show` omits."""
    return [(name, f"{sentence}{_options(kinds.member(kind, name))}") for name, sentence in _classes(kind)]


def _options(cls: type) -> str:
    defaults = {name: option.default for name, option in inspect.signature(cls).parameters.items()}
    given = {name: value for name, value in defaults.items() if value not in (None, inspect.Parameter.empty)}
    return f" Options: {', '.join(f'{name} = {toml.value(value)}' for name, value in given.items())}." if given else ""


def _data() -> Listing:
    from holdfast import data

    return [(name, data.about(name)) for name in data.names()]


def _recipes() -> Listing:
    return [(name, str(source.table(name).get("description", ""))) for name in source.names()]


def _zoo() -> Listing:
    return [(name, str(zoo.card(name))) for name in zoo.names()]


KINDS: Mapping[str, Callable[[], Listing]] = {
    "attacks": lambda: _classes("attack"),
    "methods": lambda: _classes("method"),
    "certifiers": lambda: _classes("certifier"),
    "models": lambda: _parts("encoder"),
    "heads": lambda: _parts("head"),
    "learners": lambda: [(name, first_paragraph(cls)) for name, cls in learners().items()],
    "data": _data,
    "recipes": _recipes,
    "zoo": _zoo,
}
