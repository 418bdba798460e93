"""`holdfast report`: writes the report again from stored records."""

from holdfast.recipes import schema
from holdfast.run.commands.options import Changes, Markdown, Out, Recipe, check_file, default_out


def report(
    recipe: Recipe,
    out: Out = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
) -> None:
    """Write the report again from the records; no model is loaded."""
    from holdfast.run.report import write_report

    loaded = schema.load(recipe, changes)
    check_file(markdown, "--markdown")
    write_report(loaded, default_out(loaded, out), markdown, table=False)
