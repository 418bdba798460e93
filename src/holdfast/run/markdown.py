"""The numbers of a study as Markdown, for documentation: generated, never typed."""

import html
import shlex
from collections.abc import Sequence
from pathlib import Path

from holdfast.recipes.schema import Recipe
from holdfast.records.atomic import write_text
from holdfast.report.certified import CertifiedStudy, text_certified
from holdfast.report.study import Run
from holdfast.report.text import text_table
from holdfast.run.study import finished, study_of


def write_markdown(recipe: Recipe, out: Path, changes: Sequence[str], path: Path) -> None:
    """Write the numbers of a study and the commands that make them."""
    runs = finished(recipe, out)
    call = recipe.name + "".join(f" --set {shlex.quote(change)}" for change in changes)
    versions = {name: value for name, value in runs[0].records.facts["versions"].items() if name != "platform"}.items()
    parts = [
        f"# {html.escape(recipe.title, quote=False)}",
        html.escape(recipe.description, quote=False),
        f"Made by `holdfast run {call}`, written by `holdfast report {call} --markdown FILE`.",
        text_table(study_of(recipe, runs)).strip(),
        _training(runs),
        "Versions: " + ", ".join(f"{name} {value}" for name, value in versions) + ".",
    ]
    write_text(path, "\n\n".join(parts) + "\n")


def write_certificates(study: CertifiedStudy, changes: Sequence[str], path: Path) -> None:
    """Write the numbers of a study of certificates and the command that makes them."""
    call = study.name + "".join(f" --set {shlex.quote(change)}" for change in changes)
    parts = [
        f"# {html.escape(study.title, quote=False)}",
        html.escape(study.description, quote=False),
        f"Made by `holdfast certify {call} --markdown FILE`.",
        text_certified(study).strip(),
        "Versions: "
        + ", ".join(f"{name} {value}" for name, value in study.versions.items() if name != "platform")
        + ".",
    ]
    write_text(path, "\n\n".join(parts) + "\n")


def _training(runs: Sequence[Run]) -> str:
    lines = ["| Method | Seed | Training seconds | Forwards | Backwards | Epochs | Best epoch |", "|" + " --- |" * 7]
    for run in runs:
        told = run.records.facts["training"]
        cells = [run.name, run.seed, round(told["seconds"])]
        cells += [told[name] for name in ("forwards", "backwards", "epochs", "best_epoch")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
