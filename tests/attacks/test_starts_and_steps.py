"""Where attacks start, which ones draw random numbers, and the steps of Adam."""

from math import inf

import pytest
import torch
from subjects import Net, samples
from torch import Tensor

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.feature_norm import FeatureNorm
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.linearity import Linearity
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack, Cost, Norm, Rows
from holdfast.geometry import L1, L2, LInf, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@pytest.fixture
def net() -> Net:
    return Net().double()


def first_points(attack: PGD | FGSM, net: Net, rng: Rng, n: int = 64) -> tuple[Tensor, Tensor]:
    """The clean inputs and the first iterates, in the order of the samples."""
    x, rows = samples(n, rng, net)
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        seen.append((rows.index, x_adv.clone()))

    attack(net, x, rows, rng=rng, watch=watch)
    index, x_adv = seen[0]
    assert torch.equal(index, rows.index)
    return x, x_adv


def test_near_adds_gaussian_noise_with_standard_deviation_0_001(net: Net, rng: Rng) -> None:
    x, x_adv = first_points(PGD(threat=Threat(LInf(), 0.1, -inf, inf), steps=1, start="near"), net, rng)
    noise = (x_adv - x) / 1e-3
    n = noise.numel()
    assert abs(noise.mean().item()) < 4 / n**0.5
    assert noise.square().mean().item() == pytest.approx(1, abs=4 * (2 / n) ** 0.5)
    assert noise.pow(4).mean().item() == pytest.approx(3, abs=0.6)


@pytest.mark.parametrize("eps", [1e-4, 0.1])
def test_near_stays_in_the_threat(eps: float, net: Net, rng: Rng) -> None:
    threat = Threat(LInf(), eps)
    x, x_adv = first_points(PGD(threat=threat, steps=1, start="near"), net, rng)
    assert threat.contains(x_adv, x).all()
    assert (x == 0).any()  # some numbers touch the box
    assert not torch.equal(x_adv, x)


def test_fgsm_can_start_near_and_pgd_at_the_clean_input(net: Net, rng: Rng) -> None:
    threat = Threat(LInf(), 0.1)
    x, x_adv = first_points(FGSM(threat=threat, start="near"), net, rng)
    assert 0 < (x_adv - x).abs().max() < 0.01
    x, x_adv = first_points(PGD(threat=threat, steps=1, start="clean"), net, rng)
    assert torch.equal(x_adv, x)


@pytest.mark.parametrize("norm", [L1(), L2()])
def test_random_starts_are_spread_between_the_clean_input_and_the_surface(norm: Norm, net: Net, rng: Rng) -> None:
    """A uniform draw from such a ball is nearly always at its surface, where PGD is weaker."""
    x, x_adv = first_points(PGD(threat=Threat(norm, 1.0, -inf, inf), steps=1), net, rng, 200)
    share = norm.length(x_adv - x).sort().values
    torch.testing.assert_close(share, torch.linspace(0, 1, 200, dtype=share.dtype), atol=0.12, rtol=0)


def test_restarts_from_near_draw_new_starts(net: Net, rng: Rng) -> None:
    x, rows = samples(1, rng, net)
    rows = Rows(net.eval()(x).argmax(1), rows.index)
    starts: list[Tensor] = []
    attack = PGD(threat=Threat(LInf(), 1e-5), steps=1, restarts=3, start="near", keep="worst")
    attack(net, x, rows, rng=rng, watch=lambda rows, x_adv, loss, cost: starts.append(x_adv.clone()))
    assert len({tuple(start.flatten().tolist()) for start in starts[::2]}) == 3


THREAT = Threat(LInf(), 0.1)


@pytest.mark.parametrize("attack", [FGSM(threat=THREAT), BIM(threat=THREAT), MIM(threat=THREAT)])
def test_attacks_from_the_clean_input_do_not_depend_on_the_rng(attack: Attack, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    assert torch.equal(attack(net, x, rows, rng=Rng(0)), attack(net, x, rows, rng=Rng(1)))


INNER = PGD(threat=THREAT, steps=3, keep="last")


@pytest.mark.parametrize(
    "attack",
    [
        INNER,
        CWLinf(threat=THREAT, steps=3),
        FeatureNorm(attack=INNER),
        Linearity(threat=THREAT),
        Noise(threat=THREAT),
        Transfer(source=Net(seed=1).double(), attack=INNER),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_attacks_from_a_random_start_depend_on_the_rng(attack: Attack, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    assert not torch.equal(attack(net, x, rows, rng=Rng(0)), attack(net, x, rows, rng=Rng(1)))


@pytest.mark.parametrize("start", ["far", "Near"])
def test_an_unknown_start_is_refused(start: str) -> None:
    with pytest.raises(ValueError, match=f"start is '{start}' but it must be one of clean, random, near"):
        PGD(threat=Threat(LInf(), 0.1), start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [LInf(), L2()])
def test_adam_steps_are_those_of_torch(norm: LInf | L2, net: Net, rng: Rng) -> None:
    x, rows = samples(5, rng, net)
    threat = Threat(norm, 0.3)
    attack = PGD(threat=threat, steps=6, step=0.1, rule="adam", start="clean", keep="last")
    net.eval()
    moved = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([moved], lr=0.1, eps=1e-9)
    for _ in range(6):
        moved.grad = -torch.autograd.grad(cross_entropy(adapt(net).outputs(moved), rows).sum(), moved)[0]
        optimizer.step()
        moved.data = threat.project(moved.data, x)
    torch.testing.assert_close(attack(net, x, rows, rng=rng), moved.detach(), rtol=0, atol=1e-9)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'sgd' but it must be one of steepest, adam"):
        PGD(threat=Threat(LInf(), 0.1), rule="sgd")  # type: ignore[arg-type]
