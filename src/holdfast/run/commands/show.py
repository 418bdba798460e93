"""`holdfast show`: a recipe with every default filled in."""

from holdfast.recipes import schema, toml
from holdfast.run.commands.options import Changes, Recipe


def show(recipe: Recipe, changes: Changes = []) -> None:  # noqa: B006
    """Print a recipe with every default filled in; the output is a recipe again.

    The defaults of encoders and heads are in `holdfast list models` and `holdfast list heads`.
    """
    print(toml.dumps(schema.load(recipe, changes).table()), end="")
