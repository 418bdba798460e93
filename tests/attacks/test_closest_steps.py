"""Minimal-norm attacks take the published steps, recomputed sample by sample in plain loops."""

from collections import defaultdict
from math import cos, inf, pi

import pytest
import torch
from subjects import Affine, Net, samples
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._closest import ClosestAttack
from holdfast.attacks.cw_l2 import CWL2
from holdfast.attacks.cw_linf_original import CWLinfOriginal
from holdfast.attacks.ddn import DDN
from holdfast.attacks.fmn import FMN
from holdfast.contracts import Cost, Rows
from holdfast.geometry import NORMS, Threat
from holdfast.rng import Rng


@pytest.fixture
def net() -> Net:
    return Net().double().eval()


def path(attack: ClosestAttack, net: nn.Module, x: Tensor, rows: Rows, rng: Rng) -> list[Tensor]:
    """The evaluated points of each sample, (steps, ...), in the order of x."""
    seen: dict[int, list[Tensor]] = defaultdict(list)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        for index, point in zip(rows.index.tolist(), x_adv, strict=True):
            seen[index].append(point.clone())

    attack(net, x, rows, rng=rng, watch=watch)
    return [torch.stack(seen[index]) for index in rows.index.tolist()]


def margin(net: nn.Module, x: Tensor, y: int) -> Tensor:
    z = net(x[None])[0]
    return torch.cat([z[:y], z[y + 1 :]]).max() - z[y]


def test_ddn(net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    x, rows = x[1:], rows.take(torch.arange(1, 4))
    steps = 12
    for i, found in enumerate(path(DDN(threat=Threat(NORMS["l2"], inf), steps=steps), net, x, rows, rng)):
        d, radius, y = torch.zeros_like(x[i]), 1.0, rows.y[i : i + 1]
        for t in range(steps + 1):
            torch.testing.assert_close(found[t], x[i] + d)
            leaf = (x[i] + d).requires_grad_()
            z = net(leaf[None])
            (grad,) = torch.autograd.grad(functional.cross_entropy(z, y), leaf)
            radius *= 0.95 if int(z.argmax()) != int(y) else 1.05
            d = d + (0.01 + 0.99 * (1 + cos(pi * t / steps)) / 2) * grad / grad.norm()
            d = (x[i] + radius * d / d.norm()).clamp(0, 1) - x[i]


def test_ddn_rounds_to_levels_inside_the_threat(net: Net, rng: Rng) -> None:
    x, rows = samples(6, rng, net)
    x = (x * 15).round() / 15
    y = net(x).argmax(1)
    for eps in (inf, 0.45):
        attack = DDN(threat=Threat(NORMS["l2"], eps), steps=10, levels=16)
        for i, found in enumerate(path(attack, net, x, Rows(y, rows.index), rng)):
            torch.testing.assert_close(found, (found * 15).round() / 15, rtol=0, atol=1e-12)
            assert attack.threat.contains(found, x[i].expand_as(found)).all()


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_the_first_step_of_fmn_goes_just_beyond_the_linearized_boundary(norm: str, dual: int, rng: Rng) -> None:
    weight = rng.normal(torch.empty(2, 6, dtype=torch.float64))
    x, model = torch.zeros(1, 6, dtype=torch.float64), Affine(weight, torch.tensor([0.3, 0.0], dtype=torch.float64))
    attack = FMN(threat=Threat(NORMS[norm], inf, -inf, inf), steps=2, alpha=100.0)
    (found,) = path(attack, model, x, Rows.of(torch.tensor([0])), rng)
    w = weight[1] - weight[0]
    length = 1.05 * 0.3 / torch.linalg.vector_norm(w, dual)
    torch.testing.assert_close(found[1], length * (w.sign() if norm == "linf" else w / w.norm()))
    second = length * (1 - (0.001 + 0.049 / 2))  # the first point succeeded; gamma is half way to 0.001
    torch.testing.assert_close(NORMS[norm].length(found[2:3])[0], second)


class Tanh:
    """The change of variables and its Adam optimizer, as plain torch has them."""

    def __init__(self, x: Tensor, rate: float) -> None:
        self.x, self.rate = x, rate
        self.w = torch.atanh((2 * x - 1) * (1 - 1e-6)).requires_grad_()
        self.reset()

    def reset(self) -> None:
        self.adam = torch.optim.Adam([self.w], lr=self.rate)

    def point(self) -> Tensor:
        return (torch.tanh(self.w) + 1) / 2

    def step(self, objective: Tensor) -> None:
        self.adam.zero_grad()
        objective.backward()
        self.adam.step()


def test_cw_l2(net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    x, rows = x[1:], rows.take(torch.arange(1, 4))
    attack = CWL2(threat=Threat(NORMS["l2"], inf), steps=30, searches=4, c=0.05, rate=0.05)
    for i, found in enumerate(path(attack, net, x, rows, rng)):
        expected, y = list[Tensor](), int(rows.y[i])
        tanh, c, low, high = Tanh(x[i], 0.05), 0.05, 0.0, inf
        for _ in range(4):
            success, last = False, inf
            for t in range(30):
                point = tanh.point()
                expected.append(point.detach().clone())
                difference = margin(net, point, y)
                success |= bool(difference > 0)
                objective = (point - x[i]).square().sum() + c * (-difference).clamp_min(0)
                value = float(objective.detach())
                stalled = t % 3 == 0 and value > 0.9999 * last
                last = value if t % 3 == 0 else last
                tanh.step(objective)
                if stalled:
                    break
            low, high = (low, min(high, c)) if success else (max(low, c), high)
            c = (low + high) / 2 if high < inf else 10 * c
            tanh.reset()
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=2e-6)  # x itself, not (1 - 1e-6)·x


def test_cw_linf_original(net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    x, rows = x[1:], rows.take(torch.arange(1, 4))
    attack = CWLinfOriginal(threat=Threat(NORMS["linf"], inf), steps=8, c=0.02, largest_c=2.0, rate=0.05)
    for i, found in enumerate(path(attack, net, x, rows, rng)):
        expected, y, t = list[Tensor](), int(rows.y[i]), 0
        tanh, c, tau = Tanh(x[i], 0.05), 0.02, 1.0
        while c < 2.0 and tau > 1 / 256:
            point = tanh.point()
            expected.append(point.detach().clone())
            difference, size = margin(net, point, y), (point - x[i]).abs()
            if difference > 0 and (size - tau).clamp_min(0).sum() < 1e-4 * c:
                tau, t = 0.9 * min(tau, float(size.detach().max())), 0
                tanh.reset()
            elif t >= 8:
                c, t = 2 * c, 0
                tanh.reset()
            tanh.step((size - tau).clamp_min(0).sum() + c * (-difference).clamp_min(0))
            t += 1
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)
