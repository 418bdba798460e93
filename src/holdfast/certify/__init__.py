"""Certificates: radii within which a prediction provably cannot change."""
