"""Heads, one per file; the file name is the recipe name. Each maps (b, width) features to (b, classes) logits."""
