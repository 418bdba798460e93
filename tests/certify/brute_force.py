"""Slow reference solutions for certificates: exhaustive search, all constraints at once, general solvers."""

from itertools import combinations

import numpy as np
from scipy.optimize import minimize, nnls


def constraints(points, labels, matrix, x, label, j):
    """Constraints a d <= b: point j is at least as near to x + d as every point with the label."""
    own = points[labels == label]
    a = 2 * (own - points[j]) @ matrix
    to_own, to_j = x - own, x - points[j]
    return a, np.einsum("ni,ij,nj->n", to_own, matrix, to_own) - to_j @ matrix @ to_j


def least_distance(a, b):
    """Length of the shortest d with a d <= b, by Lawson and Hanson's reduction to non-negative least squares."""
    if (b >= 0).all():
        return 0.0
    rows = np.linalg.norm(a, axis=1) > 1e-12
    a, b = a[rows], b[rows]
    size = np.linalg.norm(a, axis=1)
    a, b = a / size[:, None], b / size
    scale = max(1.0, np.abs(b).max())
    u, _ = nnls(np.vstack([-a.T, -b / scale]), np.append(np.zeros(a.shape[1]), 1.0), maxiter=10_000)
    v = u / (1 + b / scale @ u)
    return scale * float(np.linalg.norm(a.T @ v))


def least_distance_slsqp(a, b, start, box=None, x=None):
    """Length of the shortest d with a d <= b, by SLSQP from a feasible start."""
    held = [{"type": "ineq", "fun": lambda d: b - a @ d, "jac": lambda d: -a}]
    bounds = None if box is None else [(box[0] - v, box[1] - v) for v in x]
    found = minimize(
        lambda d: d @ d,
        start,
        jac=lambda d: 2 * d,
        bounds=bounds,
        constraints=held,
        options={"ftol": 1e-16, "maxiter": 500},
    )
    return float(np.linalg.norm(found.x))


def nearest_radius(points, labels, matrix, x, label, *, strictly=False):
    """Minimum over all candidates j; ``strictly`` leaves out candidates that coincide with a point of the label."""
    lengths = [np.inf]
    for j in np.flatnonzero(labels != label):
        apart = points[labels == label] - points[j]
        coincides = (np.einsum("ni,ij,nj->n", apart, matrix, apart) < 1e-18).any()
        if not (strictly and coincides):
            lengths.append(least_distance(*constraints(points, labels, matrix, x, label, j)))
    return min(lengths)


def triplet(points, matrix, x, i, j):
    """Length of the shortest perturbation after which j is at least as near as i."""
    near, far = (float((x - points[t]) @ matrix @ (x - points[t])) for t in (i, j))
    size = np.linalg.norm(matrix @ (points[i] - points[j]))
    return max(0.0, far - near) / (2 * size) if far > near else 0.0


def theorem_one(points, labels, matrix, x, label, k):
    """The lower bound of Theorem 1 of ARML, by its formula."""
    half = (k + 1) // 2
    own, others = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
    inner = []
    for j in others:
        lengths = sorted((triplet(points, matrix, x, i, j) for i in own), reverse=True)
        inner.append(lengths[half - 1] if len(lengths) >= half else 0.0)
    return sorted(inner)[half - 1] if len(inner) >= half else np.inf


def voting_radius(points, labels, matrix, x, label, k):
    """The exact radius for k neighbors, by exhaustive search over sets of k points in which the label does not win."""
    best = np.inf
    indices = range(len(points))
    for chosen in combinations(indices, k):
        counts = np.bincount(labels[list(chosen)], minlength=labels.max() + 1)
        if counts[label] > np.delete(counts, label).max():
            continue
        rest = [t for t in indices if t not in chosen]
        rows = [constraint(points, matrix, x, near, far) for near in chosen for far in rest]
        a, b = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        if feasible(a, b):
            best = min(best, least_distance(a, b))
    return best


def constraint(points, matrix, x, near, far):
    """Constraint a·d <= b: one point is at least as near to x + d as another."""
    u, v = x - points[far], x - points[near]
    return 2 * (points[far] - points[near]) @ matrix, float(u @ matrix @ u - v @ matrix @ v)


def feasible(a, b):
    """Return whether some d satisfies a d <= b, by the residual of the reduction to non-negative least squares."""
    size = np.maximum(np.linalg.norm(a, axis=1), 1e-300)
    a, b = a / size[:, None], b / size
    if (b >= 0).all():
        return True
    _, residual = nnls(np.vstack([-a.T, -b]), np.append(np.zeros(a.shape[1]), 1.0), maxiter=10_000)
    return residual > 1e-7
