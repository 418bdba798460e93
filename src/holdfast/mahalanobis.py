"""Mahalanobis metrics: the distance (u - v)ᵀ M (u - v) as the squared Euclidean distance after a linear map."""

from math import frexp

import torch
from torch import Tensor

ROUNDING = 1e-6
"""Relative to the largest entry of a matrix: asymmetry and negative eigenvalues up to here count as rounding errors."""


def factor(matrix: Tensor) -> tuple[Tensor, float]:
    """Factor a positive semi-definite matrix as ``scale`` * GᵀG; return G in float64 and the scale.

    G has as many rows as the matrix has rank, at least one. The scale is a power of two that brings the largest entry
    of GᵀG into [1, 2), so that squared distances neither overflow nor underflow. A matrix that is symmetric and
    positive semi-definite up to :data:`ROUNDING` is symmetrized, and its negative eigenvalues are set to zero.
    """
    if matrix.is_complex():
        raise ValueError("the matrix holds complex numbers but a metric needs real ones; give GᵀG of some real G")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"the matrix has shape {tuple(matrix.shape)} but a metric needs a square one")
    m = matrix.detach().double()
    if not m.isfinite().all():
        raise ValueError("the matrix holds NaN or infinite values; give a positive semi-definite matrix")
    scale = 2.0 ** (frexp(float(m.abs().max()))[1] - 1)
    m = m / scale
    tolerance = ROUNDING * float(m.abs().max())
    if float((m - m.T).abs().max()) > tolerance:
        raise ValueError("the matrix is not symmetric but a metric needs M = Mᵀ; give GᵀG of some G")
    values, vectors = torch.linalg.eigh((m + m.T) / 2)
    if float(values[0]) < -tolerance:
        raise ValueError(
            f"the matrix has the eigenvalue {scale * float(values[0]):.3g} but a metric must be positive "
            "semi-definite; give GᵀG of some G"
        )
    nonzero = values > len(m) * torch.finfo(m.dtype).eps * float(values.abs().max())
    nonzero[-1] = True  # the factor of a zero matrix has one row
    root: Tensor = values[nonzero].clamp_min(0).sqrt()[:, None] * vectors[:, nonzero].T
    return root, scale
