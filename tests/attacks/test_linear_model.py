"""For f(x) = Wx + b without a box the distance to every class has a closed form, which attacks must reproduce."""

from math import inf

import pytest
import torch
from subjects import Affine
from torch import Tensor

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Attack, Rows
from holdfast.geometry import NORMS, Threat
from holdfast.losses.classification import targeted_cross_entropy, targeted_logit_difference
from holdfast.rng import Rng

DUAL = {"linf": 1, "l2": 2, "l1": inf}
N, DIMS = 120, 8


def problem(rng: Rng, classes: int, norm: str) -> tuple[Affine, Tensor, Tensor, Tensor]:
    """A model, inputs, their predicted labels, and (n, classes) distances to each other class's half-space."""
    weight = rng.fork("weight").normal(torch.empty(classes, DIMS, dtype=torch.float64))
    bias = rng.fork("bias").normal(torch.empty(classes, dtype=torch.float64))
    x = rng.fork("x").normal(torch.empty(N, DIMS, dtype=torch.float64))
    model = Affine(weight, bias)
    z = model(x).detach()
    y = z.argmax(1)
    gap = z.gather(1, y[:, None]) - z
    length = torch.linalg.vector_norm(weight[y][:, None] - weight[None], DUAL[norm], dim=2)
    return model, x, y, torch.where(length > 0, gap / length, inf)


def radius(distance: Tensor) -> tuple[float, Tensor]:
    """An eps within which half of the samples can be misclassified, and which samples are not within 2 % of it."""
    eps = float(distance.amin(1).median())
    return eps, ((distance.amin(1) / eps - 1).abs() > 0.02)


def fooled(attack: Attack, model: Affine, x: Tensor, y: Tensor | Rows, rng: Rng) -> Tensor:
    x_adv = attack(model, x, y, rng=rng)
    assert attack.threat.contains(x_adv, x).all()
    return model(x_adv).argmax(1) != Rows.of(y).y


@pytest.mark.parametrize(
    ("make", "norm"), [*((make, norm) for make in (PGD, BIM, MIM) for norm in DUAL), (CWLinf, "linf")]
)
def test_two_classes(make: type[PGD], norm: str, rng: Rng) -> None:
    model, x, y, distance = problem(rng, 2, norm)
    eps, clear = radius(distance)
    attack = make(threat=Threat(NORMS[norm], eps, -inf, inf), steps=60, step=eps / 4)
    broken = fooled(attack, model, x, y, rng)
    assert torch.equal(broken[clear], (distance.amin(1) < eps)[clear])
    assert 0.4 * N < broken.sum() < 0.6 * N


@pytest.mark.parametrize("norm", DUAL)
def test_one_step_is_exact_for_two_classes(norm: str, rng: Rng) -> None:
    model, x, y, distance = problem(rng, 2, norm)
    eps, _ = radius(distance)
    eps *= 1.0001  # the median is itself a sample
    broken = fooled(FGSM(threat=Threat(NORMS[norm], eps, -inf, inf)), model, x, y, rng)
    assert torch.equal(broken, distance.amin(1) < eps)


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("loss", [targeted_logit_difference, targeted_cross_entropy], ids=lambda loss: loss.__name__)
def test_every_target_of_many_classes(norm: str, loss: object, rng: Rng) -> None:
    """Toward one class the problem is linear, so there is no local maximum to get stuck in."""
    model, x, y, distance = problem(rng, 5, norm)
    eps, clear = radius(distance)
    attack = PGD(threat=Threat(NORMS[norm], eps, -inf, inf), steps=60, step=eps / 4, loss=loss)
    broken = torch.zeros(N, dtype=torch.bool)
    for target in range(5):
        rows = Rows(y, torch.arange(N), {"target": torch.full((N,), target)}).take(y != target)
        broken[y != target] |= fooled(attack, model, x[y != target], rows, rng)
    assert torch.equal(broken[clear], (distance.amin(1) < eps)[clear])


@pytest.mark.parametrize("norm", DUAL)
def test_many_classes_untargeted(norm: str, rng: Rng) -> None:
    """The loss is convex, so maximizing it can end at the wrong class; restarts find the right one."""
    model, x, y, distance = problem(rng, 5, norm)
    eps, clear = radius(distance)
    attack = PGD(threat=Threat(NORMS[norm], eps, -inf, inf), steps=40, step=eps / 4, restarts=8)
    broken = fooled(attack, model, x, y, rng)
    near = distance.amin(1) < eps
    assert not (broken & ~near)[clear].any()
    assert (broken & near)[clear].sum() >= 0.95 * near[clear].sum()


@pytest.mark.parametrize("norm", DUAL)
def test_the_closest_iterate_is_one_step_from_the_closed_form(norm: str, rng: Rng) -> None:
    model, x, y, distance = problem(rng, 2, norm)
    threat = Threat(NORMS[norm], 2 * float(distance.amin(1).max()), -inf, inf)
    attack = BIM(threat=threat, steps=400, step=threat.eps / 400, keep="closest")
    x_adv = attack(model, x, y, rng=rng)
    assert (model(x_adv).argmax(1) != y).all()
    over = threat.norm.length(x_adv - x) - distance.amin(1)
    assert (over >= -1e-9).all()
    assert (over <= 1.01 * threat.eps / 400).all()


@pytest.mark.parametrize("norm", DUAL)
def test_noise_never_beats_the_closed_form(norm: str, rng: Rng) -> None:
    model, x, y, distance = problem(rng, 5, norm)
    eps, _ = radius(distance)
    broken = fooled(Noise(threat=Threat(NORMS[norm], eps, -inf, inf)), model, x, y, rng)
    assert not (broken & (distance.amin(1) > eps)).any()
    assert broken.sum() < (distance.amin(1) < eps).sum()
