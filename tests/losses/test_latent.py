"""Losses of features and prototypes agree with loops and closed forms."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holdfast.contracts import Outputs, Rows
from holdfast.losses.latent import PrototypeDifference, away_from_prototype, class_means, toward_prototype
from holdfast.rng import Rng


def case(rng: Rng, n: int = 12, classes: int = 4, d: int = 5) -> tuple[Outputs, Rows, Tensor]:
    features = rng.fork("features").normal(torch.empty(n, d, dtype=torch.float64))
    prototypes = rng.fork("prototypes").normal(torch.empty(classes, d, dtype=torch.float64))
    y = torch.arange(n) % classes
    rows = Rows(y, torch.arange(n), {"prototype": prototypes[(y + 1) % classes]})
    return Outputs(features, features, features[:, :classes]), rows, prototypes


def between(a: Tensor, b: Tensor, distance: str) -> float:
    if distance == "cosine":
        return 1 - float(functional.cosine_similarity(a, b, dim=0))
    return sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_distances_equal_a_loop(distance: str, rng: Rng) -> None:
    out, rows, prototypes = case(rng)
    away = away_from_prototype(out, rows, distance=distance)  # type: ignore[arg-type]
    difference = PrototypeDifference(prototypes, distance)(out, rows)  # type: ignore[arg-type]
    for i, features in enumerate(out.features):
        own = [between(features, prototype, distance) for prototype in prototypes]
        assert float(away[i]) == pytest.approx(between(features, rows["prototype"][i], distance))
        others = [value for label, value in enumerate(own) if label != rows.y[i]]
        assert float(difference[i]) == pytest.approx(own[rows.y[i]] - min(others))
    assert torch.equal(toward_prototype(out, rows, distance=distance), -away)  # type: ignore[arg-type]


def test_the_difference_is_positive_exactly_when_another_prototype_is_nearest(rng: Rng) -> None:
    out, rows, prototypes = case(rng, n=200)
    nearest = torch.cdist(out.features, prototypes).argmin(1)
    loss = PrototypeDifference(prototypes)
    assert torch.equal(loss(out, rows) > 0, nearest != rows.y)
    assert torch.equal(loss.distances(out.features).argmin(1), nearest)


def test_the_gradient_of_the_difference_points_between_the_two_prototypes(rng: Rng) -> None:
    """|f - p|² - |f - q|² is linear in f with the gradient 2 (q - p)."""
    out, rows, prototypes = case(rng)
    features = out.features.clone().requires_grad_()
    loss = PrototypeDifference(prototypes)
    (grad,) = torch.autograd.grad(loss(out._replace(features=features), rows).sum(), features)
    other = loss.distances(out.features).scatter(1, rows.y[:, None], torch.inf).argmin(1)
    torch.testing.assert_close(grad, 2 * (prototypes[other] - prototypes[rows.y]))


def test_class_means_equal_a_loop(rng: Rng) -> None:
    out, rows, _ = case(rng, n=11)
    means = class_means(out.features, rows.y, 4)
    for label in range(4):
        torch.testing.assert_close(means[label], out.features[rows.y == label].mean(0))


@pytest.mark.parametrize("y", [[0, 0, 2], [0, 1, 3]])
def test_classes_without_samples_or_beyond_the_last_are_refused(y: list[int]) -> None:
    with pytest.raises(ValueError, match=r"each of the classes 0\.\.2 needs at least one"):
        class_means(torch.ones(3, 2), torch.tensor(y), 3)


def test_bad_settings_are_refused(rng: Rng) -> None:
    out, rows, prototypes = case(rng)
    with pytest.raises(ValueError, match="distance is 'manhattan' but it must be one of euclidean, cosine"):
        away_from_prototype(out, rows, distance="manhattan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distance is 'l1'"):
        PrototypeDifference(prototypes, "l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"prototypes have shape \(5,\) but one row of features"):
        PrototypeDifference(prototypes[0])
    with pytest.raises(ValueError, match="features have 5 dimensions and prototypes 3; compute"):
        PrototypeDifference(prototypes[:, :3])(out, rows)
    with pytest.raises(KeyError, match="this loss needs 'prototype' for every sample"):
        toward_prototype(out, Rows(rows.y, rows.index))
