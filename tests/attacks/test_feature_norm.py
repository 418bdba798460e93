"""FeatureNorm agrees with an attack on the normalized network written out; bad settings are refused."""

import pytest
import torch
from subjects import Net, samples
from torch import Tensor, nn

from holdfast.attacks.feature_norm import FeatureNorm
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.pgd import PGD
from holdfast.geometry import LInf, Threat
from holdfast.models.classifier import Classifier
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)


@pytest.fixture
def parts(rng: Rng) -> tuple[nn.Module, nn.Linear]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.Softplus()).double(), nn.Linear(6, 3).double()


def lengthened(body: nn.Module, head: nn.Linear, scale: float) -> nn.Module:
    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = body(x)
            return scale * z / z.square().sum(1, keepdim=True).sqrt() @ head.weight.T + head.bias

    return Written()


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("form", ["classifier", "sequential"])
def test_equals_the_attack_on_the_network_with_normalized_features(
    scale: float, form: str, parts: tuple[nn.Module, nn.Linear], rng: Rng
) -> None:
    body, head = parts
    model = Classifier(body, head) if form == "classifier" else nn.Sequential(*body, head)
    x, rows = samples(7, rng, model)
    attack = PGD(threat=THREAT, steps=5, keep="last")
    found = FeatureNorm(attack=attack, scale=scale)(model, x, rows, rng=rng)
    expected = attack(lengthened(body, head, scale), x, rows, rng=rng)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(found, attack(model, x, rows, rng=rng))


def test_a_hypersphere_network_has_normalized_features_already(rng: Rng) -> None:
    model = Classifier(nn.Flatten(), Hypersphere(32, 3).double())
    x, rows = samples(7, rng, model)
    attack = PGD(threat=THREAT, steps=5, keep="last")
    found = FeatureNorm(attack=attack)(model, x, rows, rng=rng)
    torch.testing.assert_close(found, attack(model, x, rows, rng=rng), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "last",
    [nn.Sequential(nn.Linear(32, 3), nn.Softmax(1)), nn.Unflatten(1, (4, 8)), nn.Bilinear(32, 32, 3)],
    ids=["softmax", "no linear layer", "another layer"],
)
def test_a_head_that_is_not_linear_is_refused(last: nn.Module, rng: Rng) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = last

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.last(x, x) if isinstance(self.last, nn.Bilinear) else self.last(x).flatten(1)[:, :3]

    x = rng.uniform(torch.empty(2, 2, 4, 4))
    with pytest.raises(ValueError, match="do not come straight from a linear layer") as refusal:
        FeatureNorm(attack=FGSM(threat=THREAT))(Model(), x, torch.tensor([0, 1]), rng=rng)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("keep", ["fooled", "closest"])
def test_attacks_that_stay_at_the_boundary_are_refused(keep: str) -> None:
    with pytest.raises(ValueError, match='feature_norm needs an attack with keep="last" or "worst"'):
        FeatureNorm(attack=PGD(threat=THREAT, keep=keep))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bad_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=f"scale is {scale} but it (is the length of the features|must be a number)"):
        FeatureNorm(attack=FGSM(threat=THREAT), scale=scale)


def test_the_length_of_features_does_not_matter(rng: Rng) -> None:
    """Long features saturate a network and hide its gradients; normalized, features ten times as long give the same."""
    net = Net().double().eval()
    x, rows = samples(7, rng, net)
    torch.manual_seed(
        0
    )  # wide, because with a single active feature the direction is constant and its gradient is rounding error
    features = nn.Sequential(nn.Flatten(), nn.Linear(32, 24, bias=False), nn.ReLU()).double()
    head, attack = nn.Linear(24, 3).double(), FeatureNorm(attack=PGD(threat=THREAT, steps=3, keep="last"))
    short = attack(Classifier(features, head), x, rows, rng=rng)
    features[1].weight.data *= 10
    torch.testing.assert_close(attack(Classifier(features, head), x, rows, rng=rng), short, rtol=0, atol=1e-9)
