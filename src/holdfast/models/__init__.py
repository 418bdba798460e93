"""Classifiers with their representation open, encoders to build them from, and the view of them that attacks use."""
