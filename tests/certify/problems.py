"""Small test problems for certificates, including degenerate ones."""

import numpy as np
import torch

from holdfast.certify.neighbors import Neighbors
from holdfast.geometry import L2
from holdfast.rng import Rng

KINDS = ("plain", "grid", "duplicates", "line", "singular", "stretched", "zero")


def problem(seed, kind, *, n=14, width=3, classes=3, queries=2):
    """Return points, labels, a matrix and inputs; ``kind`` chooses the degeneracy."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, width))
    x = rng.normal(size=(queries, width))
    g = rng.normal(size=(width, width)) if seed % 2 else np.eye(width)
    if kind == "grid":  # ties, collinear points, and equal points with different labels
        points, x = np.round(points), np.round(2 * x) / 2
    elif kind == "duplicates":
        points[n // 2 :] = points[: n - n // 2]
        x[0] = points[0]
    elif kind == "line":
        points = np.outer(rng.normal(size=n), rng.normal(size=width))
    elif kind == "singular":
        g = rng.normal(size=(1 + seed % (width - 1), width))
    elif kind == "stretched":
        g = np.diag(10.0 ** -np.arange(width)) @ rng.normal(size=(width, width))
    elif kind == "zero":
        g = np.zeros((width, width))
    labels = rng.permutation(np.arange(n) % classes)
    return points, labels, g.T @ g, x


def assert_label_is_constant(certify, x, found, seed, draws):
    """Draw points uniformly from the certified ball of each input and check that their label is that of the input."""
    many = x.repeat_interleave(draws, 0)
    radius = found.radius.clamp_max(10).repeat_interleave(draws) * (1 - 1e-9)
    around = many + L2().sample(many, radius, Rng(seed))
    moved = radius > 1e-9
    assert (certify.predict(around) == found.label.repeat_interleave(draws))[moved].all()


def assert_examples_are_adversarial(certify, x, found, examples):
    """Check that finite upper bounds are the lengths of perturbations that change the label."""
    assert (found.radius <= found.upper).all()
    reached = found.upper.isfinite()
    assert (certify.predict(examples)[reached] != found.label[reached]).all()
    torch.testing.assert_close(L2().length(examples - x)[reached], found.upper[reached])


def certifier(points, labels, matrix, **options):
    return Neighbors(
        points=torch.from_numpy(points), labels=torch.from_numpy(labels), matrix=torch.from_numpy(matrix), **options
    )
