"""Encoders, one per file; the file name is the recipe name. Each maps (b, *shape) inputs to (b, width) features."""
