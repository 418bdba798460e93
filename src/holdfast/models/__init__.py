"""Classifiers that expose their features, the encoders and heads they are built from, and published weights."""
