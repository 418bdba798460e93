"""Writes the report of a study: tables on the terminal, the page, and Markdown."""

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from holdfast.recipes.schema import Recipe
from holdfast.records.files import write_text
from holdfast.report.page import write_page
from holdfast.report.study import Study
from holdfast.report.study_page import study_page
from holdfast.report.text import markdown as markdown_text
from holdfast.report.text import text_table
from holdfast.report.together import together
from holdfast.run.study import study_of


def write_report(
    recipe: Recipe, out: Path, markdown: Path | None, text: Callable[[Study], str] | None = text_table
) -> None:
    """Print a study as ``text`` and write its page, and its numbers as Markdown if a file is given."""
    call = recipe.call or recipe.name
    _write(study_of(recipe, out), f"holdfast run {call}", call, out, markdown, text)


def write_comparison(recipes: Mapping[str, Recipe], out: Path | None, markdown: Path | None) -> None:
    """The page of several recipes or folders of results side by side, by the names that they were called with."""
    names = [recipe.name for recipe in recipes.values()]
    studies = {
        recipe.name if names.count(recipe.name) == 1 else call: study_of(recipe, recipe.default_out)
        for call, recipe in recipes.items()
    }
    folder = Path("runs") / "-".join(recipe.default_out.name for recipe in recipes.values()) if out is None else out
    runs, calls = "` and `".join(f"holdfast run {name}" for name in names), " ".join(map(quote, recipes))
    _write(together(studies), runs, calls, folder, markdown, None)


def _write(
    study: Study, run: str, call: str, out: Path, markdown: Path | None, text: Callable[[Study], str] | None
) -> None:
    if text is not None:
        print(text(study))
    if markdown is not None:
        write_text(markdown, markdown_text(study, run, f"holdfast report {call} --markdown FILE"))
    path = out / "report.html"
    write_page(path, study_page(study))
    print(f"report: {path}")
