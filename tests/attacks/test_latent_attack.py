"""Latent moves features: closed forms on linear features, and read-outs that are not the linear head."""

import dataclasses
from math import inf

import pytest
import torch
from subjects import Net, samples
from torch import Tensor, nn

from holdfast.attacks.latent import Latent
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Cost, Rows
from holdfast.geometry import L2, LInf, Threat
from holdfast.losses.latent import PrototypeDifference, class_means
from holdfast.models.classifier import Classifier, adapt
from holdfast.rng import Rng

FREE = Threat(L2(), 0.5, -inf, inf)


@pytest.fixture
def linear(rng: Rng) -> Classifier:
    """Features A x of 4 dimensions and a linear head that has nothing to do with the prototypes."""
    encoder, head = nn.Linear(6, 4, bias=False).double(), nn.Linear(4, 3).double()
    encoder.weight.data = rng.fork("A").normal(encoder.weight.data)
    head.weight.data = rng.fork("head").normal(head.weight.data)
    return Classifier(encoder, head)


def inputs(rng: Rng, n: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    x = rng.fork("x").normal(torch.empty(n, 6, dtype=torch.float64))
    prototypes = rng.fork("p").normal(torch.empty(3, 4, dtype=torch.float64))
    return x, torch.arange(n) % 3, prototypes


def test_one_step_between_two_prototypes_has_a_closed_form(linear: Classifier, rng: Rng) -> None:
    """The loss is linear in x with the gradient 2 A'(q - p), q the other prototype and p that of the label."""
    x, _, prototypes = inputs(rng)
    y = torch.arange(8) % 2
    attack = Latent(threat=FREE, prototypes=prototypes[:2], steps=1, step=0.5, start="clean", keep="last")
    direction = (prototypes[1 - y] - prototypes[y]) @ linear.encoder.weight.detach()
    expected = x + 0.5 * direction / direction.norm(dim=1, keepdim=True)
    torch.testing.assert_close(attack(linear, x, y, rng=rng), expected)


def test_toward_a_given_prototype_it_reaches_the_nearest_point(linear: Classifier, rng: Rng) -> None:
    """Minimizing |A x - p|² over a ball that holds a solution of A x = p reaches it."""
    x, y, prototypes = inputs(rng)
    goal = prototypes[(y + 1) % 3]
    rows = Rows(y, torch.arange(8), {"prototype": goal})
    threat = Threat(L2(), 50.0, -inf, inf)
    attack = Latent(threat=threat, steps=400, step=0.02, start="clean", keep="last")
    with torch.no_grad():
        before = (linear.encoder(x) - goal).norm(dim=1)
        after = (linear.encoder(attack(linear, x, rows, rng=rng)) - goal).norm(dim=1)
    assert (after < 0.01 + 0.2 * before).all()


def test_away_from_the_clean_features_it_ends_along_the_largest_singular_vector(linear: Classifier, rng: Rng) -> None:
    """The largest |A d| with |d| <= eps is eps times the largest singular value."""
    x, y, _ = inputs(rng)
    attack = Latent(threat=FREE, steps=200, step=0.1, keep="last")
    x_adv = attack(linear, x, y, rng=rng)
    with torch.no_grad():
        moved = (linear.encoder(x_adv) - linear.encoder(x)).norm(dim=1)
        largest = 0.5 * torch.linalg.svdvals(linear.encoder.weight)[0]
    torch.testing.assert_close(moved, largest.expand(8), rtol=1e-3, atol=0)


def test_it_breaks_a_nearest_prototype_readout_that_pgd_on_the_head_leaves(rng: Rng) -> None:
    """The head looks at other features than those that separate the prototypes."""
    torch.manual_seed(0)
    encoder, head = nn.Linear(20, 6).double(), nn.Linear(6, 3).double()
    head.weight.data[:, 3:] = 0
    model = Classifier(encoder, head)
    x = 0.5 + 0.1 * rng.fork("x").normal(torch.empty(300, 20, dtype=torch.float64)).clamp(-3, 3)
    with torch.no_grad():
        features = encoder(x)
        groups = (features - features.mean(0))[:, 3:].argmax(1)
    prototypes = class_means(features, groups, 3)
    prototypes[:, :3] = features[:, :3].mean(0)
    loss = PrototypeDifference(prototypes)

    def readout(features: Tensor) -> Tensor:
        return loss.distances(features).argmin(1)

    y = readout(features)
    threat = Threat(LInf(), 0.05)

    @torch.no_grad()
    def held(x_adv: Tensor) -> float:
        return float((readout(encoder(x_adv)) == y).double().mean())

    latent = Latent(threat=threat, prototypes=prototypes, readout=readout, steps=20)
    usual = PGD(threat=threat, steps=20, keep="last")
    assert held(latent(model, x, y, rng=rng)) < 0.3 < 0.5 < held(usual(model, x, y, rng=rng))


@pytest.mark.parametrize("scores", [False, True])
def test_success_is_decided_by_the_readout(scores: bool, linear: Classifier, rng: Rng) -> None:
    x, y, prototypes = inputs(rng, n=40)
    loss = PrototypeDifference(prototypes)

    def readout(features: Tensor) -> Tensor:
        return -loss.distances(features) if scores else loss.distances(features).argmin(1)

    attack = Latent(threat=FREE, prototypes=prototypes, readout=readout, steps=30)
    with torch.no_grad():
        y = loss.distances(linear.encoder(x)).argmin(1)
        x_adv = attack(linear, x, y, rng=rng)
        after = loss.distances(linear.encoder(x_adv)).sort(1).values
        missed = loss.distances(linear.encoder(x_adv)).argmin(1) != y
        assert missed.any()
        rest = dataclasses.replace(attack, keep="last")(linear, x, y, rng=rng)
        far = loss.distances(linear.encoder(rest)).sort(1).values
    gap, end = (after[:, 1] - after[:, 0])[missed], (far[:, 1] - far[:, 0])[missed]
    assert (gap <= end + 1e-9).double().mean() > 0.9  # it stopped at the first iterate that the read-out gets wrong


def test_without_a_readout_the_model_decides(linear: Classifier, rng: Rng) -> None:
    x, _, prototypes = inputs(rng, n=40)
    with torch.no_grad():
        y = linear(x).argmax(1)
    stopped = Latent(threat=FREE, prototypes=prototypes, steps=30, start="clean")
    with torch.no_grad():
        x_adv = stopped(linear, x, y, rng=rng)
        on = dataclasses.replace(stopped, keep="last")(linear, x, y, rng=rng)
        fooled = linear(x_adv).argmax(1) != y
    assert fooled.any()
    assert ((x_adv - x).norm(dim=1) < (on - x).norm(dim=1) + 1e-9)[fooled].all()


def test_a_named_layer_gives_the_features(rng: Rng) -> None:
    net = Net().double().eval()
    x, rows = samples(6, rng, net)
    threat = Threat(LInf(), 0.1)
    with torch.no_grad():
        early = adapt(net).outputs(x, "body.0").features
    attack = Latent(threat=threat, layer="body.0", steps=10, keep="last")
    with torch.no_grad():
        moved = adapt(net).outputs(attack(net, x, rows, rng=rng), "body.0").features - early
        other = dataclasses.replace(attack, layer=None)(net, x, rows, rng=rng)
        less = adapt(net).outputs(other, "body.0").features - early
    assert moved.square().sum() > less.square().sum()
    prototypes = torch.stack([early[0], early[1], early[2]])
    found = dataclasses.replace(attack, prototypes=prototypes)(net, x, rows, rng=rng)
    assert threat.contains(found, x).all()
    with pytest.raises(ValueError, match="features have 64 dimensions and prototypes 3"):
        dataclasses.replace(attack, prototypes=prototypes[:, :3])(net, x, rows, rng=rng)


def test_the_clean_pass_is_counted(rng: Rng) -> None:
    net, costs = Net().double(), list[Cost]()
    x, rows = samples(5, rng, net)
    attack = Latent(threat=Threat(LInf(), 0.1), steps=3, keep="last")
    attack(net, x, rows, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    assert sum(costs, Cost()) == Cost(20, 15)


def test_a_clean_start_needs_a_prototype(linear: Classifier, rng: Rng) -> None:
    x, y, _ = inputs(rng)
    with pytest.raises(ValueError, match='start is "clean" but the distance to the clean features has no gradient'):
        Latent(threat=FREE, start="clean")(linear, x, y, rng=rng)


def test_a_bad_distance_or_readout_is_refused(linear: Classifier, rng: Rng) -> None:
    x, y, prototypes = inputs(rng)
    with pytest.raises(ValueError, match="distance is 'l1' but it must be one of euclidean, cosine"):
        Latent(threat=FREE, prototypes=prototypes, distance="l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distance is 'l1' but it must be one of euclidean, cosine"):
        Latent(threat=FREE, distance="l1")  # type: ignore[arg-type]
    bad = Latent(threat=FREE, prototypes=prototypes, readout=lambda features: features.argmax(1)[:3])
    with pytest.raises(ValueError, match=r"readout returned \(3,\) of type torch.int64 for 8 samples but labels"):
        bad(linear, x, y, rng=rng)
