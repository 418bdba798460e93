"""Subjects, measurements and the evaluator that turns them into records."""
