"""Synthetic records, for tests that need no model."""

from synthetic_study import make_run, make_study, study, without  # noqa: F401  (fixtures)
