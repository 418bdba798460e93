"""The tables of a recipe, as frozen dataclasses."""
