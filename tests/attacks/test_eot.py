"""EOT climbs the expected loss: analytic gradients of a linear model with noise, and means over draws by hand."""

import pytest
import torch
from subjects import Counted, Net, samples
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._gradients import estimating
from holdfast.attacks.eot import EOT
from holdfast.attacks.feature_norm import FeatureNorm
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack, Cost, Outputs, Rows
from holdfast.geometry import L2, LInf, Threat
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)
WIDE = Threat(L2(), 1.0, -torch.inf, torch.inf)


class Noisy(nn.Module):
    """Two classes: the difference of the logits is w·(x + std·n) with fresh Gaussian noise n in every pass."""

    def __init__(self, weight: Tensor, std: float) -> None:
        super().__init__()
        self.weight, self.std = nn.Parameter(weight), std

    def forward(self, x: Tensor) -> Tensor:
        z = (x + self.std * torch.randn_like(x)) @ self.weight
        return torch.stack([torch.zeros_like(z), z], 1)


def seen_gradient(attack: Attack, model: nn.Module, x: Tensor, y: Tensor, rng: Rng) -> Tensor:
    """The gradient that one L2 step follows, up to its length."""
    return (attack(model, x, y, rng=rng) - x) / attack.threat.eps


@pytest.mark.parametrize("draws", [1, 5])
def test_the_gradient_is_the_mean_of_the_gradients_of_the_draws(draws: int, rng: Rng) -> None:
    """Bilinear logits x·N·W with a random matrix N in each pass: the direction of the gradient depends on the draws."""

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(rng.fork("w").normal(torch.empty(6, 3, dtype=torch.float64)))

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.randn(6, 6, dtype=x.dtype) @ self.weight

    model, x = Mixing(), rng.fork("x").normal(torch.empty(4, 6, dtype=torch.float64))
    y = torch.tensor([0, 1, 2, 1])
    found = seen_gradient(EOT(attack=FGSM(threat=WIDE), draws=draws), model, x, y, rng)
    leaf = x.clone().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.fork("model").seed)  # the numbers of the frozen view
        losses = [functional.cross_entropy(model(leaf), y, reduction="sum") for _ in range(draws)]
    (mean,) = torch.autograd.grad(sum(losses), leaf)
    torch.testing.assert_close(found, functional.normalize(mean, dim=1), rtol=1e-9, atol=1e-12)


def test_the_mean_gradient_approaches_the_gradient_of_the_expected_loss(rng: Rng) -> None:
    """z = w·x + s|w|g with normal g: the expected cross entropy of class 0 has the gradient E[sigmoid(z)] w."""
    weight = rng.fork("w").normal(torch.empty(6, dtype=torch.float64))
    model, x = Noisy(weight, 0.8), rng.fork("x").normal(torch.empty(5, 6, dtype=torch.float64))
    y = torch.zeros(5, dtype=torch.int64)
    seen: list[Tensor] = []

    def smooth(grad: Tensor) -> Tensor:
        seen.append(grad)
        return grad

    g = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = (-g.square() / 2).exp() / (-g.square() / 2).exp().sum()
    chance = (torch.sigmoid((x @ weight)[:, None] + 0.8 * weight.norm() * g) * density).sum(1)
    with estimating("test", x, smooth=smooth):
        EOT(attack=FGSM(threat=WIDE), draws=4000)(model, x, y, rng=rng)
    torch.testing.assert_close(seen[0], chance[:, None] * weight, rtol=0, atol=0.06)
    of_the_mean = torch.sigmoid(x @ weight)[:, None] * weight  # what averaged logits would give
    assert (seen[0] - of_the_mean).abs().max() > 0.12


@pytest.mark.parametrize("inner", [PGD(threat=THREAT, steps=3, keep="worst"), MIM(threat=THREAT, steps=3, keep="last")])
def test_without_randomness_it_is_the_inner_attack(inner: Attack, rng: Rng) -> None:
    net = Net().double()
    x, rows = samples(9, rng, net)
    found = EOT(attack=inner, draws=3)(net, x, rows, rng=rng)
    torch.testing.assert_close(found, inner(net, x, rows, rng=rng), rtol=0, atol=1e-12)


def test_one_draw_is_the_inner_attack_bit_for_bit(rng: Rng) -> None:
    inner, net = PGD(threat=THREAT, steps=3, keep="worst"), Net()
    x, rows = samples(9, rng, Net().double())
    x = x.float()
    assert torch.equal(EOT(attack=inner, draws=1)(net, x, rows, rng=rng), inner(net, x, rows, rng=rng))


def test_misclassification_and_loss_are_of_the_mean(rng: Rng) -> None:
    """keep="worst" prefers misclassified iterates; with means over draws it chooses as the noiseless model would."""
    weight = torch.tensor([3.0, 0.0], dtype=torch.float64)
    x, y = torch.tensor([[-0.2, 0.0], [-0.02, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    losses: list[Tensor] = []
    outs: list[Tensor] = []

    def loss(out: Outputs, rows: Rows) -> Tensor:
        outs.append(out.logits.detach())
        return functional.cross_entropy(out.logits, rows.y, reduction="none")

    attack = EOT(
        attack=PGD(threat=Threat(L2(), 0.1, -9, 9), steps=1, start="clean", keep="worst", loss=loss), draws=600
    )
    x_adv = attack(Noisy(weight, 1.0), x, y, rng=rng, watch=lambda r, p, value, c: losses.append(value))
    assert len(losses) == len(outs) == 2 * 600  # every draw is told, at both iterates
    torch.testing.assert_close((x_adv - x)[:, 0], torch.full((2,), 0.1, dtype=torch.float64), rtol=1e-6, atol=0)


def test_the_passes_of_all_draws_are_counted(rng: Rng) -> None:
    net, costs = Counted(Net().double()), list[Cost]()
    x, rows = samples(5, rng, net.module)
    attack = EOT(attack=PGD(threat=THREAT, steps=3, keep="last"), draws=4)
    attack(net, x, rows, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    assert sum(costs, Cost()) == net.cost == Cost(60, 60)


def test_it_is_stronger_on_a_randomized_model(rng: Rng) -> None:
    """A sign flips in half of the passes unless averaged: single gradients are mostly noise."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(rng.fork("w").normal(torch.empty(40)))

        def forward(self, x: Tensor) -> Tensor:
            z = x @ self.weight + 3 * torch.randn(len(x), 40).mul(x).sum(1)
            return torch.stack([-z, z], 1)

    model, x = Masked(), 0.5 + 0.2 * rng.fork("x").normal(torch.empty(200, 40)).clamp(-2, 2)
    mean = x @ model.weight.detach()
    y = (mean > 0).long()
    inner = PGD(threat=Threat(LInf(), 0.05, -9, 9), steps=5, keep="last")

    def drop(attack: Attack) -> float:
        z = attack(model, x, y, rng=rng) @ model.weight.detach()
        return float((torch.where(y == 1, mean - z, z - mean)).mean())

    assert drop(EOT(attack=inner, draws=30)) > 1.5 * drop(inner)


def test_it_composes_with_transfer_and_feature_norm(rng: Rng) -> None:
    source, net = Counted(Net(seed=1).double()), Net().double()
    x, rows = samples(5, rng, net)
    inner = PGD(threat=THREAT, steps=2, keep="last")
    transfer = Transfer(source=source, attack=inner, diversity=1.0, smallest=0.5)
    outside, inside = (
        EOT(attack=transfer, draws=3),
        Transfer(source=source, attack=EOT(attack=inner, draws=3), diversity=1.0, smallest=0.5),
    )
    assert torch.equal(outside(net, x, rows, rng=rng), inside(net, x, rows, rng=rng))
    assert source.cost == Cost(60, 60)
    assert not torch.equal(outside(net, x, rows, rng=rng), transfer(net, x, rows, rng=rng))  # other draws of DI
    normed = FeatureNorm(attack=EOT(attack=inner, draws=2))
    torch.testing.assert_close(normed(net, x, rows, rng=rng), FeatureNorm(attack=inner)(net, x, rows, rng=rng))


def test_attacks_without_gradients_are_refused(rng: Rng) -> None:
    x, rows = samples(3, rng, Net().double())
    with pytest.raises(ValueError, match="eot needs an attack that follows gradients by the shared loop"):
        EOT(attack=Noise(threat=THREAT))(Net().double(), x, rows, rng=rng)


def test_later_attacks_are_not_affected_by_an_exception(rng: Rng) -> None:
    net, inner = Net().double(), PGD(threat=THREAT, steps=3, keep="last")
    x, rows = samples(3, rng, net)
    expected = inner(net, x, rows, rng=rng)
    net.calls_left = 2
    with pytest.raises(RuntimeError, match="the model broke"):
        EOT(attack=inner, draws=3)(net, x, rows, rng=rng)
    net.calls_left = -1
    counted = Counted(net)
    assert torch.equal(inner(counted, x, rows, rng=rng), expected)
    assert counted.cost == Cost(9, 9)


@pytest.mark.parametrize("draws", [0, -1])
def test_fewer_than_one_draw_is_refused(draws: int) -> None:
    with pytest.raises(ValueError, match=f"draws is {draws} but a gradient needs at least one"):
        EOT(attack=FGSM(threat=THREAT), draws=draws)


@pytest.mark.parametrize("keep", ["fooled", "closest"])
def test_attacks_that_stay_at_the_boundary_are_refused(keep: str) -> None:
    with pytest.raises(ValueError, match='eot needs an attack with keep="last" or "worst"'):
        EOT(attack=PGD(threat=THREAT, keep=keep))  # type: ignore[arg-type]
