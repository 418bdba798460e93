"""Training methods, one per file; the file name is the recipe name. Every term is a mean over the batch."""
