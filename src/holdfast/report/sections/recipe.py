"""The recipe of the study."""

from holdfast.report.page import Section
from holdfast.report.study import Study

ORDER = 80


def section(study: Study) -> Section | None:
    """The recipe with all defaults; None for what was measured from Python."""
    if not study.recipe:
        return None
    return recipe_section(study.recipe, "All defaults are written out.")


def recipe_section(recipe: str, note: str) -> Section:
    """A recipe as preformatted text."""
    return Section(id="recipe", title="Recipe", sentences=[note], code=recipe)
