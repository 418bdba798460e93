"""`holdfast report`: writes the report again from stored records, of one study or of several side by side."""

from typing import Annotated

import typer

from holdfast.recipes import schema
from holdfast.run.commands.options import Changes, Markdown, Out, check_file, default_out


def report(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|RUN...",
            help="A recipe name, a .toml file, or a folder of results; several are compared side by side.",
        ),
    ],
    out: Out = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
) -> None:
    """Write the report again from the records; no model is loaded.

    Several recipes or folders are shown side by side, with paired tests where they were measured on the same samples.
    """
    from holdfast.run.report import write_comparison, write_report

    check_file(markdown, "--markdown")
    if len(recipes) == 1:
        loaded = schema.load(recipes[0], changes)
        write_report(loaded, default_out(loaded, out), markdown, text=None)
        return
    if len(set(recipes)) < len(recipes):
        raise ValueError(f"{' '.join(recipes)} names a study twice; name each once")
    write_comparison({name: schema.load(name, changes) for name in recipes}, out, markdown)
