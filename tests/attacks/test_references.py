"""Each attack agrees, step by step, with a short loop written from its paper."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
import torch
from subjects import Counted, Net, samples
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack, Cost, Rows
from holdfast.geometry import L2, LInf, Threat
from holdfast.rng import Rng

EPS, STEP, STEPS = 0.1, 0.03, 8
BOX = Threat(LInf(), EPS)
BALL = Threat(L2(), 0.5, -inf, inf)

Case = tuple[Net, Tensor, Rows]


@pytest.fixture
def case(rng: Rng) -> Case:
    net = Net().double().eval()
    return net, *samples(12, rng, net)


def input_gradient(net: Net, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    x = x.detach().requires_grad_()
    value = cross_entropy(net(x), y, reduction="sum") if loss is None else loss(net(x), y).sum()
    return torch.autograd.grad(value, x)[0]


def boxed(x_adv: Tensor, x: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x_adv, x - EPS), x + EPS).clamp(0, 1)


def uniform_start(x: Tensor, rows: Rows, rng: Rng) -> Tensor:
    """The random start of the attack, computed from the same random numbers."""
    u = rng.fork("start").at(rows.index).at(torch.zeros(len(x))).uniform(x)
    return boxed(x + EPS * (2 * u - 1), x)


def follow(attack: Attack, case: Case, rng: Rng, walk: list[Tensor]) -> None:
    """Check that the evaluated iterates and the returned one are those of the walk."""
    net, x, rows = case
    seen: list[Tensor] = []

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        seen.append(x_adv)

    seen.append(attack(net, x, rows, rng=rng, watch=watch))
    assert len(seen) == len(walk)
    for ours, theirs in zip(seen, walk, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    assert (walk[-1] - x).abs().max() > EPS / 2


def test_pgd_linf(case: Case, rng: Rng) -> None:
    net, x, rows = case
    walk = [uniform_start(x, rows, rng)]
    for _ in range(STEPS):
        walk.append(boxed(walk[-1] + STEP * input_gradient(net, walk[-1], rows.y).sign(), x))
    follow(PGD(threat=BOX, steps=STEPS, step=STEP, keep="last"), case, rng, walk)


def test_pgd_l2(case: Case, rng: Rng) -> None:
    net, x, rows = case
    drawn = rng.fork("start").at(rows.index).at(torch.zeros(len(x)))
    way, u = drawn.fork("direction").normal(x), drawn.fork("radius").uniform(x[:, 0, 0, 0])
    length = 0.5 * drawn.fork("share").uniform(x[:, 0, 0, 0]) * u ** (1 / 32) / way.flatten(1).norm(dim=1)
    walk = [x + way * length[:, None, None, None]]
    for _ in range(STEPS):
        g = input_gradient(net, walk[-1], rows.y)
        d = walk[-1] + 0.2 * g / g.flatten(1).norm(dim=1)[:, None, None, None] - x
        walk.append(x + d * (0.5 / d.flatten(1).norm(dim=1)).clamp_max(1)[:, None, None, None])
    follow(PGD(threat=BALL, steps=STEPS, step=0.2, keep="last"), case, rng, walk)


def test_bim(case: Case, rng: Rng) -> None:
    net, x, rows = case
    walk = [x]
    for _ in range(STEPS):
        walk.append(boxed(walk[-1] + STEP * input_gradient(net, walk[-1], rows.y).sign(), x))
    follow(BIM(threat=BOX, steps=STEPS, step=STEP, keep="last"), case, rng, walk)


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_mim_as_in_the_paper(case: Case, decay: float, rng: Rng) -> None:
    net, x, rows = case
    walk, g = [x], torch.zeros_like(x)
    for _ in range(STEPS):
        grad = input_gradient(net, walk[-1], rows.y)
        g = decay * g + grad / grad.abs().mean((1, 2, 3), keepdim=True)
        walk.append(boxed(walk[-1] + STEP * g.sign(), x))
    follow(MIM(threat=BOX, steps=STEPS, step=STEP, decay=decay, keep="last"), case, rng, walk)


@pytest.mark.parametrize("decay", [0.9, 0.5, 0.0])
def test_mim_as_in_the_code_of_tla(case: Case, decay: float, rng: Rng) -> None:
    net, x, rows = case
    walk, g = [x], input_gradient(net, x, rows.y)
    for t in range(STEPS):
        g = g if t == 0 else decay * g + (1 - decay) * input_gradient(net, walk[-1], rows.y)
        walk.append(boxed(walk[-1] + STEP * g.sign(), x))
    follow(MIM(threat=BOX, steps=STEPS, step=STEP, decay=decay, form="average", keep="last"), case, rng, walk)


@pytest.mark.parametrize("kappa", [50.0, 0.5])
def test_cw_linf_as_in_the_code_of_tla(case: Case, kappa: float, rng: Rng) -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        true = torch.nn.functional.one_hot(y, 3).bool()
        return -relu(z[true] - z.masked_fill(true, -1e4).amax(1) + kappa)

    net, x, rows = case
    walk = [uniform_start(x, rows, rng)]
    for _ in range(STEPS):
        walk.append(boxed(walk[-1] + STEP * input_gradient(net, walk[-1], rows.y, loss).sign(), x))
    follow(CWLinf(threat=BOX, steps=STEPS, step=STEP, kappa=kappa, keep="last"), case, rng, walk)


def test_fgsm(case: Case, rng: Rng) -> None:
    net, x, rows = case
    follow(FGSM(threat=BOX), case, rng, [x, boxed(x + EPS * input_gradient(net, x, rows.y).sign(), x)])
    start = uniform_start(x, rows, rng)
    stepped = boxed(start + EPS * input_gradient(net, start, rows.y).sign(), x)
    follow(FGSM(threat=BOX, start="random"), case, rng, [start, stepped])


def test_noise(case: Case, rng: Rng) -> None:
    _, x, rows = case
    u = rng.fork("noise").at(rows.index).uniform(x)
    follow(Noise(threat=BOX), case, rng, [boxed(x + EPS * (2 * u - 1), x)])


def test_transfer_crafts_on_its_source(case: Case, rng: Rng) -> None:
    net, x, rows = case
    source, inner = Net(seed=5).double(), PGD(threat=BOX, steps=3, keep="worst")
    attack = Transfer(source=source, attack=inner)
    expected, target = inner(source, x, rows, rng=rng), Counted(net)
    assert torch.equal(attack(target, x, rows, rng=rng), expected)
    assert not target.sizes  # the model under test is never evaluated
    assert not torch.equal(inner(net, x, rows, rng=rng), expected)
    assert attack.at(0.05).attack == inner.at(0.05)
    assert attack.at(0.05).source is source


@pytest.mark.parametrize("keep", ["fooled", "closest"])
def test_transfer_refuses_attacks_that_stay_at_the_boundary(keep: str) -> None:
    with pytest.raises(ValueError, match='transfer needs an attack with keep="last" or "worst"'):
        Transfer(source=Net(), attack=PGD(threat=BOX, keep=keep))


@pytest.mark.parametrize("attack", [BIM, PGD, MIM, CWLinf])
def test_the_default_step_crosses_the_ball(attack: type[PGD], case: Case, rng: Rng) -> None:
    net, x, rows = case
    implied, stated = attack(threat=BOX, steps=5, keep="last"), attack(threat=BOX, steps=5, step=0.05, keep="last")
    torch.testing.assert_close(implied(net, x, rows, rng=rng), stated(net, x, rows, rng=rng), atol=1e-12, rtol=0)
    assert not torch.equal(replace(stated, step=0.04)(net, x, rows, rng=rng), stated(net, x, rows, rng=rng))


@pytest.mark.parametrize("decay", [1.0, 1.5, -0.1])
def test_a_moving_average_without_the_gradient_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f'decay is {decay} but form="average" needs one in'):
        MIM(threat=BOX, form="average", decay=decay)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form is 'mean' but it must be one of normalized, average"):
        MIM(threat=BOX, form="mean")
