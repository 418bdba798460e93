"""Attacks, one per file: the file name is the recipe name, and the file defines one public frozen dataclass."""
