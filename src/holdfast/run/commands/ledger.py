"""`holdfast ledger`: what runs say about the claims of papers."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.run.commands.options import Markdown, check_file


def ledger(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of results; default: runs, and the records that a checkout keeps."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the page.")] = Path("runs/ledger"),
    markdown: Markdown = None,
) -> None:
    """Compare the claims of papers with your runs: holds, does not hold, not decided, or the command to run."""
    from holdfast.run.ledger import write_ledger

    check_file(markdown, "--markdown")
    write_ledger(folders, out, markdown)
