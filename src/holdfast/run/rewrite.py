"""The page of a recipe and its numbers as text, again from the records: no model is touched, nothing is certified."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.recipes.certificate import CertificateRecipe
from holdfast.recipes.schema import Recipe
from holdfast.run import certify, study
from holdfast.run.markdown import write_certificates, write_markdown


def rewrite(recipe: Recipe | CertificateRecipe, out: Path, changes: Sequence[str], markdown: Path | None) -> Path:
    """Write report.html, and the numbers to ``markdown`` where asked; returns the page."""
    if isinstance(recipe, CertificateRecipe):
        certificates = certify.report(recipe, out)
        if markdown is not None:
            write_certificates(certificates, changes, markdown)
        return out / "report.html"
    if markdown is not None:
        write_markdown(recipe, out, changes, markdown)
    return study.report(recipe, out)
