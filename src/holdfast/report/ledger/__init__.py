"""The ledger: claims of papers, what they published, what our runs measured, and a verdict by a criterion fixed before.

``claims.toml`` holds the claims and their criteria, ``published.csv`` the figures that the papers published, with their
sources, and ``steps.json`` the time of a training step of each recipe, from which the hours of a run are reckoned.
"""
