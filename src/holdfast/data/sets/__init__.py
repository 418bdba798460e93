"""Data sets that recipes can name, one per file; the file name is the recipe name."""
