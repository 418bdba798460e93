"""Encoders, one per file; the file name is the recipe name. Each maps (b, *shape) to (b, width)."""
