"""Certified radii: distances within which the prediction of a classifier provably cannot change.

:class:`holdfast.certify.neighbors.Neighbors` certifies K-nearest-neighbor classifiers. A certifier of networks is a
file with one frozen dataclass whose field ``model`` is the network and whose other fields are settings with defaults;
the table [certificates] of a recipe names it by its file. ``model`` is ``nn.Identity()`` while a recipe is read, so
that wrong settings are refused before there is a network. Later it is the network in eval mode: a
:class:`holdfast.models.classifier.Classifier` that the recipe trained, or a network of the user inside
:class:`holdfast.models.own.Own`. Both take inputs in [0, 1] and normalize them in a layer of their own;
:func:`holdfast.crafting.tracing.trace` gives the layers of both in the order in which they run.
"""
