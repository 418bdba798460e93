"""Certified radii of K-nearest-neighbor classifiers under a Mahalanobis metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from holdfast.certify._knn.attack import attack
from holdfast.certify._knn.exact import exact_radius
from holdfast.certify._knn.space import Space, present
from holdfast.certify._knn.vote_bound import vote_bound
from holdfast.contracts import Certificate, Norm
from holdfast.geometry import L2
from holdfast.mahalanobis import factor
from holdfast.rng import Rng

_LARGEST, _LEAST = 1e100, 1e-100  # fourth powers of larger or smaller numbers leave the range of float64


@dataclass(frozen=True, eq=False, kw_only=True)
class Neighbors:
    """A K-nearest-neighbor classifier with distance (u - v)ᵀ M (u - v), certified in L2 (Wang et al. 2020, ARML).

    With k = 1 the radius is exact up to rounding: ``radius`` is a proved lower bound, ``upper`` is the length of an
    example verified to have another label, and the two agree to many digits. With k = 3, 5, ... ``radius`` is a lower
    bound, at least that of the paper, and ``upper`` comes from an attack. ``near`` restricts the bound to that many
    nearest training points of the input's label, which is faster and gives a smaller radius. ``box`` = (low, high)
    restricts perturbed inputs to the box, which can only increase the radius.

    ``matrix`` is M, positive semi-definite (see :func:`holdfast.mahalanobis.factor`); by default distances are
    Euclidean. Of equally distant points the first is nearer, and of equally frequent labels the smallest is predicted,
    but a radius holds for every tie-breaking rule. Everything is computed in float64, in memory that grows with the
    number of training points and not with the number of inputs.
    """

    points: Tensor
    labels: Tensor
    matrix: Tensor | None = None
    k: int = 1
    near: int | None = None
    box: tuple[float, float] | None = None
    norm: Norm = field(default=L2(), init=False)

    def __post_init__(self) -> None:
        _check_numbers("points", self.points)
        _check_spread(self.points)
        _check_labels(self.labels, len(self.points))
        if not _is_whole(self.k) or self.k < 1 or self.k % 2 == 0:
            raise ValueError(
                f"k is {self.k!r} but must be an odd whole number, so that a majority is one; give 1, 3, 5, ..."
            )
        if len(self.points) < self.k + 1:
            raise ValueError(f"there are {len(self.points)} points but k = {self.k} needs {self.k + 1} or more")
        majority = (self.k + 1) // 2
        if self.near is not None and (not _is_whole(self.near) or self.near < majority):
            raise ValueError(
                f"near is {self.near!r} but the bound of k = {self.k} needs a whole number of points, "
                f"{majority} or more; leave it out to use all"
            )
        if self.matrix is not None:
            _check_tensor("matrix", self.matrix)
        if self.box is not None:
            _check_box(self.box)
            _check_inside("points", self.points, self.box)

    @cached_property
    def _space(self) -> Space:
        points = self.points.detach().flatten(1).double()
        root = None if self.matrix is None else _root(self.matrix, points.shape[1]).to(points.device)
        return Space(points, self.labels.detach().to(torch.int64), root)

    def predict(self, x: Tensor) -> Tensor:
        """Return the (b,) predicted labels."""
        return self._space.predict(self._flat(x), self.k)

    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate:
        """Return label, radius and upper bound of each input; ``rng`` is not used."""
        return self.examine(x)[0]

    def examine(self, x: Tensor) -> tuple[Certificate, Tensor]:
        """Return the certificate and adversarial examples at its upper bounds (x itself where that is infinite)."""
        flat = self._flat(x)
        label = self._space.predict(flat, self.k)
        if self.k == 1:
            found = exact_radius(self._space, flat, label, self.box)
            return Certificate(label, found.radius, found.upper), found.x_adv.reshape(x.shape)
        radius = vote_bound(self._space, flat, label, self.k, self.near)
        x_adv = attack(self._space, flat, label, self.k, self.box)
        fooled = self._space.predict(x_adv, self.k) != label
        upper = torch.where(fooled, self.norm.length(x_adv - flat), torch.inf)
        return Certificate(label, radius, upper), x_adv.reshape(x.shape)

    def check(self, x: Tensor) -> None:
        """Raise ValueError for inputs that cannot be certified."""
        _check_numbers("x", x)
        if x.shape[1:] != self.points.shape[1:]:
            raise ValueError(
                f"x has samples of shape {tuple(x.shape[1:])} but the points have {tuple(self.points.shape[1:])}"
            )
        if self.box is not None:
            _check_inside("x", x, self.box)

    def _flat(self, x: Tensor) -> Tensor:
        self.check(x)
        return x.detach().flatten(1).to(self.points.device, torch.float64)


def _root(matrix: Tensor, width: int) -> Tensor:
    """Return G with GᵀG = M up to a scale, which changes no radius and keeps squared distances in range."""
    if matrix.shape != (width, width):
        raise ValueError(
            f"the matrix has shape {tuple(matrix.shape)} but samples of {width} numbers need ({width}, {width})"
        )
    return factor(matrix)[0]


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} is a {type(x).__name__} but must be a tensor; give torch.as_tensor({name})")


def _check_numbers(name: str, x: Tensor) -> None:
    _check_tensor(name, x)
    if not x.is_floating_point() or x.ndim < 2:
        raise ValueError(f"{name} is {x.dtype} of shape {tuple(x.shape)} but must be floating point and (n, ...)")
    if not x.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinite values; repair or remove them")
    if x.numel() and (largest := float(x.abs().max())) > _LARGEST:
        raise ValueError(f"{name} reaches {largest:.3g}, whose square overflows; scale all samples, e.g. to [0, 1]")


def _check_spread(points: Tensor) -> None:
    spread = float((points.amax(0) - points.amin(0)).max()) if points.numel() else 0.0
    if 0 < spread < _LEAST:
        raise ValueError(f"points span {spread:.3g}, whose square underflows; scale all samples, e.g. to [0, 1]")


def _check_labels(labels: Tensor, n: int) -> None:
    _check_tensor("labels", labels)
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != (n,) or not integers or (n and int(labels.to(torch.int64).min()) < 0):
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}; give {n} integers from 0, one for each point"
        )
    if len(present(labels.to(torch.int64))) < 2:
        raise ValueError("all points have the same label, so no prediction can change; give two classes or more")


def _check_box(box: Any) -> None:
    if not isinstance(box, tuple | list) or len(box) != 2 or not all(isinstance(bound, Real) for bound in box):
        raise ValueError(f"box is {box!r} but must be two numbers, (low, high)")
    if not box[0] < box[1]:
        raise ValueError(f"the box [{box[0]}, {box[1]}] is empty; low must be below high")


def _check_inside(name: str, x: Tensor, box: tuple[float, float]) -> None:
    if x.numel() and (x.min() < box[0] or x.max() > box[1]):
        raise ValueError(
            f"{name} spans [{x.min():.3g}, {x.max():.3g}] but the box is [{box[0]:g}, {box[1]:g}]; widen it"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
