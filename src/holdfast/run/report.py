"""Writes the report of a study: tables on the terminal, the page, and Markdown."""

from pathlib import Path

from holdfast.recipes.schema import Recipe
from holdfast.records.files import write_text
from holdfast.report.page import write_page
from holdfast.report.study_page import study_page
from holdfast.report.text import markdown as markdown_text
from holdfast.report.text import text_table
from holdfast.run.study import study_of


def write_report(recipe: Recipe, out: Path, markdown: Path | None, table: bool = True) -> None:
    """Print the tables of a study and write its page, and its numbers as Markdown if a file is given."""
    study = study_of(recipe, out)
    if table:
        print(text_table(study))
    if markdown is not None:
        call = recipe.call or recipe.name
        run, report = f"holdfast run {call}", f"holdfast report {call} --markdown FILE"
        write_text(markdown, markdown_text(study, run, report))
    path = out / "report.html"
    write_page(path, study_page(study))
    print(f"report: {path}")
