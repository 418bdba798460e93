import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from torch import nn

from holdfast.attacks.pgd import PGD
from holdfast.geometry import LInf, Threat
from holdfast.losses.detection import Evasion
from holdfast.models.classifier import Classifier
from holdfast.models.detector import Abstaining, Detector
from holdfast.rng import Rng


def data(n=120, d=4, seed=0):
    torch.manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, d) @ torch.randn(d, d) + 4 * torch.eye(3, d)[y], y


def test_densities_are_those_of_scipy_with_the_covariance_of_scikit_learn():
    features, y = data()
    points = torch.randn(10, 4)
    found = Detector.fit(features, y).densities(points)
    for k in range(3):
        own = features[y == k].double().numpy()
        expected = multivariate_normal(own.mean(0), LedoitWolf().fit(own).covariance_).logpdf(points)
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-4)


def test_dead_features_do_not_make_it_singular():
    features, y = data()
    features[:, 2] = 0
    assert Detector.fit(features, y).score(features).isfinite().all()


def test_the_threshold_rejects_at_most_the_share_asked_for():
    features, y = data(1000)
    detector = Detector.fit(features[:500], y[:500])
    assert not detector.rejects(features).any()
    detector.calibrate(features[500:], 0.05)
    rate = detector.rejects(features[500:]).float().mean()
    assert 0.04 <= rate <= 0.05


def test_an_abstaining_model_rejects_what_its_detector_does():
    model = Classifier(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3))
    x, y = torch.rand(90, 6), torch.arange(90) % 3
    detector = Detector.fit(model.outputs(x).features.detach(), y)
    wrapped = Abstaining(model, detector.calibrate(model.outputs(x).features, 0.2))
    assert torch.equal(wrapped(x), model(x))
    assert wrapped.abstains(x).sum() == 18


def test_an_attack_that_knows_the_detector_evades_it_more_often():
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh()), nn.Linear(8, 3, bias=False))
    x = torch.rand(60, 6)
    model.normalize = nn.LayerNorm(6)  # spreads the samples over the classes
    with torch.no_grad():
        y = model(x).argmax(1)
        detector = Detector.fit(model.outputs(x).features, y)
    threat = Threat(LInf(), 0.3)
    blind = PGD(threat=threat, steps=20)(model, x, y, rng=Rng(0))
    aware = PGD(threat=threat, steps=20, loss=Evasion(detector.score), keep="worst")(model, x, y, rng=Rng(0))
    fooled = (model(blind).argmax(1) != y) & (model(aware).argmax(1) != y)
    assert fooled.sum() > 20
    scores = [detector.score(model.outputs(one).features)[fooled].mean() for one in (blind, aware)]
    assert scores[1] > scores[0]


@pytest.mark.parametrize(
    ("features", "y", "words"),
    [
        (torch.rand(3, 2), torch.tensor([0, 0, 1]), "class 1 has one sample"),
        (torch.full((4, 2), torch.nan), torch.tensor([0, 0, 1, 1]), "NaN"),
        (torch.rand(3), torch.zeros(3).long(), "features have shape"),
    ],
)
def test_bad_input(features, y, words):
    with pytest.raises(ValueError, match=words):
        Detector.fit(features, y)


def test_features_of_another_layer_are_refused():
    with pytest.raises(ValueError, match="same layer"):
        Detector.fit(*data()).score(torch.rand(2, 7))
