"""Data sets, one per file; the file name is the recipe name."""
