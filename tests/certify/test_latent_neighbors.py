"""Nearest neighbors in feature space: brute force, closed forms, samples and attacks never inside the radius."""

from typing import Any

import pytest
import torch
from bounded_networks import CLASSES, LAYERS, SHAPE, network, points
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.attacks.latent import Latent
from holdfast.certify._bounds.lipschitz import constant, rounding_of
from holdfast.certify._bounds.network import convert
from holdfast.certify._bounds.propagate import Bounds
from holdfast.certify._bounds.region import Region
from holdfast.certify.latent_neighbors import LatentNeighbors
from holdfast.geometry import NORMS, Threat
from holdfast.learners.arml import ARML
from holdfast.losses.latent import class_means
from holdfast.models.classifier import adapt
from holdfast.rng import Rng

LABELS = torch.arange(30) % CLASSES
architectures = st.lists(st.sampled_from(sorted(LAYERS)), min_size=0, max_size=3)
read_outs = st.sampled_from(
    [
        {},
        {"k": 3},
        {"distance": "cosine"},
        {"distance": "cosine", "k": 5},
        {"distance": "mahalanobis"},
        {"prototypes": True},
        {"prototypes": True, "distance": "cosine"},
        {"by": "lipschitz"},
        {"by": "lipschitz", "k": 3, "distance": "mahalanobis"},
        {"intermediate": "ibp", "gallery": 20},
    ]
)


def images(rng: Rng, n: int = 30) -> Tensor:
    return rng.fork("images").uniform(torch.empty(n, *SHAPE))


def made(model: nn.Module, rng: Rng, norm: str = "l2", **how: Any) -> LatentNeighbors:
    """The certifier with a gallery of random images, and with a random matrix if it needs one."""
    if how.get("distance") == "mahalanobis":
        root = rng.fork("matrix").normal(torch.empty(5, 8, dtype=torch.float64))
        how = {"matrix": root.T @ root, **how}
    if how.get("by") == "lipschitz":
        norm = "l2"
    return LatentNeighbors(model=model, points=images(rng), labels=LABELS, norm=NORMS[norm], **how)


def plain_loop(certify: LatentNeighbors, x: Tensor) -> Tensor:
    """The read-out of float64 features by its definition: distances to all points, sorted, and a vote."""
    model = adapt(certify.model.double())
    gallery, z = model.outputs(images(Rng(0)).double()).features, model.outputs(x.double()).features
    certify.model.float()
    labels = LABELS
    cosine = certify.distance == "cosine"
    if cosine:
        gallery, z = nn.functional.normalize(gallery), nn.functional.normalize(z)
    if certify.prototypes:
        gallery, labels = class_means(gallery, LABELS, CLASSES), torch.arange(CLASSES)
        gallery = nn.functional.normalize(gallery) if cosine else gallery
    apart = z[:, None] - gallery
    matrix = torch.eye(z.shape[1]).double() if certify.matrix is None else certify.matrix
    assert isinstance(matrix, Tensor)
    distance = torch.einsum("bni,ij,bnj->bn", apart, matrix, apart)
    return labels[distance.argsort(1)[:, : certify.k]].mode(1).values


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"k": 5},
        {"distance": "cosine"},
        {"distance": "mahalanobis", "k": 3},
        {"prototypes": True},
        {"prototypes": True, "distance": "cosine"},
    ],
)
@torch.no_grad()
def test_predictions_are_those_of_a_plain_loop(how: dict[str, Any]) -> None:
    rng = Rng(0)
    certify, x = made(network(["conv", "relu"], "linear", rng), rng, **how), images(rng.fork("other"), 50)
    label = certify.predict(x)
    assert torch.equal(label, plain_loop(certify, x))
    assert torch.equal(certify(x[:10], rng=rng).label, label[:10])
    assert len(label.unique()) > 1


@settings(max_examples=12)
@given(names=architectures, how=read_outs, norm=st.sampled_from(["linf", "l2"]), seed=st.integers(0, 10**6))
def test_neither_samples_nor_attacks_change_the_label_within_the_radius(
    names: list[str], how: dict[str, Any], norm: str, seed: int
) -> None:
    rng = Rng(seed)
    model, x = network(names, "linear", rng), images(rng.fork("tested"), 2)
    certify = made(model, rng, norm, **how)
    found, reach = certify(x, rng=rng), certify.norm.name
    means = class_means(certify.features(images(rng)), LABELS, CLASSES).float()
    for one, label, radius in zip(x.split(1), found.label.split(1), found.radius.tolist(), strict=True):
        if radius > 0:
            r = min(radius, 9.0) * (1 - 1e-6)
            assert (certify.predict(points(one[0], r, reach, rng)) == label).all()
            attack = Latent(threat=Threat(NORMS[reach], r), prototypes=means, readout=certify.read, steps=10)
            assert torch.equal(certify.predict(attack(model, one, label, rng=rng)), label)


def test_every_read_out_certifies_something(rng: Rng) -> None:
    model, x = network(["conv", "relu"], "hypersphere", rng), images(rng.fork("tested"), 8)
    for norm in ("linf", "l2"):
        for how in ({}, {"k": 3}, {"distance": "cosine"}, {"distance": "mahalanobis"}, {"prototypes": True}):
            assert (made(model, rng, norm, **how)(x, rng=rng).radius > 0).any(), (norm, how)
    assert (made(model, rng, by="lipschitz")(x, rng=rng).radius > 0).any()


@pytest.mark.parametrize("by", ["crown", "lipschitz"])
def test_the_radius_in_an_isometric_feature_space_is_the_distance_to_the_nearest_bisector(by: Any, rng: Rng) -> None:
    """Features are a rotation of the input, so that the certified radius of one neighbor has a closed form."""
    turn = torch.linalg.qr(rng.fork("turn").normal(torch.empty(4, 4))).Q
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    model[0].weight.data = turn
    gallery, x = (0.4 + 0.2 * rng.fork(name).uniform(torch.empty(12, 4)) for name in ("gallery", "x"))
    labels = torch.arange(12) % 3
    certify = LatentNeighbors(model=model, points=gallery, labels=labels, norm=NORMS["l2"], by=by, tolerance=1e-4)
    found = certify(x, rng=rng)
    for i, (one, label) in enumerate(zip(x.double(), found.label, strict=True)):
        squares = (one - gallery.double()).square().sum(1)
        a = squares.argmin()
        to_bisector = (squares - squares[a]) / (2 * (gallery - gallery[a]).double().norm(dim=1))
        exact = float(to_bisector[labels != label].min())
        assert exact * 0.999 - 1e-5 <= float(found.radius[i]) <= exact * (1 + 1e-6)


def test_radii_of_a_small_network_are_below_those_of_a_fine_grid(rng: Rng) -> None:
    """Brute force over the whole square: the nearest grid point with another label is no nearer than the radius."""
    model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    for name, value in model.named_parameters():
        value.data = rng.fork(name).normal(torch.empty_like(value))
    line = torch.linspace(0, 1, 150)
    grid = torch.cartesian_prod(line, line)
    x, gallery = (rng.fork(name).uniform(torch.empty(15, 2)) for name in ("x", "gallery"))
    for norm in ("linf", "l2"):
        for how in ({}, {"k": 3}, {"distance": "cosine"}):
            certify = LatentNeighbors(model=model, points=gallery, labels=torch.arange(15) % 2, norm=NORMS[norm], **how)
            found, labels = certify(x, rng=rng), certify.predict(grid)
            lengths = torch.linalg.vector_norm(grid - x[:, None], torch.inf if norm == "linf" else 2, dim=2)
            nearest = lengths.masked_fill(labels == found.label[:, None], torch.inf).amin(1)
            assert (found.radius <= nearest).all()
            assert (found.radius > 0).any()


def test_the_length_of_features_cancels_out_of_the_cosine(rng: Rng) -> None:
    """Features scaled by a thousand have the same neighbors and the same certificates."""
    model, x = network(["conv", "relu"], "linear", rng), images(rng.fork("tested"), 6)
    first = made(model, rng, distance="cosine")(x, rng=rng)
    linear = [module for module in model.encoder.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        linear.weight *= 1000
        linear.bias *= 1000
    second = made(model, rng, distance="cosine")(x, rng=rng)
    assert torch.equal(first.label, second.label)
    torch.testing.assert_close(first.radius, second.radius, rtol=1e-2, atol=1e-6)


def test_more_points_than_one_block_are_bounded_exactly_as_all_at_once(
    rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(["conv", "relu"], "linear", rng), images(rng.fork("tested"), 6)
    whole = made(model, rng, k=3)(x, rng=rng)
    monkeypatch.setattr("holdfast.certify.latent_neighbors._ROWS", 3)
    monkeypatch.setattr("holdfast.certify.latent_neighbors._ENTRIES", 150)
    parts = made(model, rng, k=3)(x, rng=rng)
    assert (whole.radius > 0).any()
    torch.testing.assert_close(whole.radius, parts.radius, rtol=1e-2, atol=1e-9)


def test_a_learned_metric_may_be_given_as_a_function(rng: Rng) -> None:
    def learn(features: Tensor, labels: Tensor) -> Tensor:
        learner = ARML(random_state=0, max_iter=5, tol=None).fit(features.numpy(), labels.numpy())
        return torch.from_numpy(learner.components_.T @ learner.components_)

    model, x = network(["conv", "relu"], "linear", rng), images(rng.fork("tested"), 5)
    certify = made(model, rng, distance="mahalanobis", matrix=learn)
    matrix = learn(certify.features(images(rng)), LABELS)
    expected = made(model, rng, distance="mahalanobis", matrix=matrix)(x, rng=rng)
    assert torch.equal(certify(x, rng=rng).radius, expected.radius)


@settings(max_examples=12)
@given(names=architectures, seed=st.integers(0, 10**6))
def test_lipschitz_constants_and_rounding_errors_hold_between_samples(names: list[str], seed: int) -> None:
    rng = Rng(seed)
    model, x = network(names, "linear", rng), images(rng, 20)
    net = convert(model, x)
    z = net.values(x.double())[net.features].flatten(1)
    few = x.double() + 1e-3 * rng.fork("near").normal(x.double())
    moved = net.values(few)[net.features].flatten(1) - z
    most = constant(net, net.features, SHAPE)
    assert (moved.norm(dim=1) <= most * (few - x).flatten(1).norm(dim=1)).all()
    assert (torch.pdist(z) <= most * torch.pdist(x.double().flatten(1))).all()
    bounds = Bounds(net, Region(x.double(), torch.zeros(20).double(), "l2", (0.0, 1.0)), "ibp")
    with torch.no_grad():
        error = (adapt(model).outputs(x).features - z).abs()
    assert (error <= rounding_of(bounds, net.features).flatten(1)).all()


def test_the_constant_of_a_chain_of_linear_layers_is_the_product_of_spectral_norms(rng: Rng) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.LeakyReLU(), nn.Linear(4, 2))
    net = convert(model, rng.uniform(torch.empty(3, 5)))
    first, second = (torch.linalg.matrix_norm(model[i].weight.detach(), 2) for i in (0, 2))
    assert constant(net, net.features, (5,)) == pytest.approx(float(first * second), rel=1e-5)


def test_a_neighbor_that_rounding_in_float32_can_change_is_not_certified(rng: Rng) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.data, model[0].bias.data = torch.eye(2), torch.full((2,), 1e8)
    gallery = torch.tensor([[0.2, 0.2], [0.8, 0.8]])
    for by in ("crown", "lipschitz"):
        certify = LatentNeighbors(model=model, points=gallery, labels=torch.tensor([0, 1]), norm=NORMS["l2"], by=by)
        assert certify(torch.full((1, 2), 0.25), rng=rng).radius == 0


@pytest.mark.parametrize("by", ["crown", "lipschitz"])
def test_points_of_two_labels_at_one_place_and_bounds_that_overflow_prove_nothing(by: Any, rng: Rng) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.full((1, 2), 0.25)
    same = LatentNeighbors(model=model, points=x.repeat(2, 1), labels=torch.tensor([0, 1]), norm=NORMS["l2"], by=by)
    assert same(x, rng=rng).radius == 0
    model = model.double()
    for layer, size in zip(model, (1e160, 1e-160), strict=True):
        layer.weight.data, layer.bias.data = size * torch.eye(2).double(), torch.zeros(2).double()
    huge = LatentNeighbors(
        model=model, points=torch.eye(2).double(), labels=torch.tensor([0, 1]), norm=NORMS["l2"], by=by
    )
    assert huge(x.double(), rng=rng).radius == 0


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"k": 2}, "k is 2 but must be odd"),
        ({"k": 3, "prototypes": True}, "each class has one prototype"),
        ({"gallery": 1}, "gallery is 1"),
        ({"matrix": torch.eye(8)}, 'distance is "euclidean", which has no matrix'),
        ({"by": "lipschitz", "norm": NORMS["linf"]}, "norm is linf but Lipschitz constants are for l2"),
        ({"labels": None}, "points and labels belong together"),
        ({"labels": LABELS[:5]}, "give 30 of type int64"),
        ({"labels": LABELS.float()}, "labels are torch.float32"),
        ({"labels": LABELS * 0}, "needs two labels or more"),
        ({"points": images(Rng(0)).long()}, "points are torch.int64"),
        ({"k": 25}, "each of 13 points or more"),
        ({"radii": (-0.1,)}, "finite radii above zero"),
        ({"distance": "hamming"}, "distance is 'hamming'"),
    ],
)
def test_wrong_settings_are_refused(how: dict[str, Any], sentence: str) -> None:
    given = {"points": images(Rng(0)), "labels": LABELS, "norm": NORMS["l2"]}
    with pytest.raises(ValueError, match=sentence):
        LatentNeighbors(model=nn.Identity(), **given | how)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"points": None, "labels": None}, "nearest neighbors need a gallery"),
        ({"distance": "mahalanobis"}, "there is no matrix"),
        ({"distance": "mahalanobis", "matrix": torch.eye(3)}, "there are 8 features"),
    ],
)
def test_what_is_missing_is_said_when_it_is_needed(how: dict[str, Any], sentence: str, rng: Rng) -> None:
    given = {"points": images(rng), "labels": LABELS}
    certify = LatentNeighbors(model=network([], "linear", rng), **given | how)
    with pytest.raises(ValueError, match=sentence):
        certify(images(rng, 2), rng=rng)
