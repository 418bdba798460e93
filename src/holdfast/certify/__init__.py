"""Certified radii: distances within which the prediction of a classifier provably cannot change.

:class:`holdfast.certify.neighbors.Neighbors` certifies K-nearest-neighbor classifiers.
"""
