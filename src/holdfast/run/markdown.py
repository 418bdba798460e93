"""The numbers of a study as Markdown, for documentation: generated, never typed."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from holdfast.recipes.schema import Recipe
from holdfast.records.atomic import write_text
from holdfast.report.study import Study
from holdfast.report.text import markdown
from holdfast.run.study import finished, study_of


def write_markdown(recipe: Recipe, out: Path, changes: Sequence[str], path: Path) -> None:
    """Write the numbers of a study and the commands that make them."""
    call = recipe.name + _settings(changes)
    study = study_of(recipe, finished(recipe, out))
    write_text(path, markdown(study, f"holdfast run {call}", f"holdfast report {call} --markdown FILE"))


def write_certificates(study: Study, changes: Sequence[str], path: Path) -> None:
    """Write the numbers of a study of certificates and the command that makes them."""
    write_text(path, markdown(study, f"holdfast certify {study.name}{_settings(changes)} --markdown FILE"))


def _settings(changes: Sequence[str]) -> str:
    return "".join(f" --set {shlex.quote(change)}" for change in changes)
