"""Recipes: TOML files validated into frozen dataclasses."""
