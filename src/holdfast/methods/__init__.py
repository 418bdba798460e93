"""Training methods, one per file; the file name is the recipe name. Everything is a mean over the batch."""
