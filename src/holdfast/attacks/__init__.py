"""Attacks, one per file; the file name is the recipe name. Names that start with ``_`` are machinery."""
