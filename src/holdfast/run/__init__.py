"""Recipes, training, evaluation and the command line: the only place where the siblings meet."""
