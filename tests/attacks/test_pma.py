"""The probability margin attack against a plain loop, and on logits that saturate the softmax."""

from collections import defaultdict
from math import cos, pi

import pytest
import torch
from subjects import Net, samples
from torch import Tensor, nn

from holdfast.attacks.pgd import PGD
from holdfast.attacks.pma import PMA
from holdfast.contracts import Cost, Rows
from holdfast.geometry import LInf, Threat
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.02)


@pytest.fixture
def net() -> Net:
    return Net().double().eval()


def by_hand(net: Net, x: Tensor, y: int, start: Tensor, run: int, steps: int, sign: int) -> list[Tensor]:
    """The iterates of one run; with ``sign=-1``, y is the class to reach."""
    half, x_adv, found = steps // 2, start, [start]
    for i in range(steps):
        p = net(x_adv.requires_grad_()[None])[0].softmax(0)
        wrong = max((v for j, v in enumerate(p) if j != y), key=lambda v: v.item())
        if i == 0:
            loss = p[y]
        elif i < half:
            loss = wrong if run else -p[y]
        else:
            loss = wrong - p[y]
        (grad,) = torch.autograd.grad(sign * loss, x_adv)
        size = THREAT.eps * (1 + cos(pi * ((i - half if i > half else i) - 1) / (steps - half)))
        moved = x_adv.detach() + size * grad.sign()
        x_adv = torch.minimum(torch.maximum(moved, x - THREAT.eps), x + THREAT.eps).clamp(0, 1)
        found.append(x_adv)
    return found


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_the_iterates_are_those_of_a_loop(steps: int, targeted: bool, net: Net, rng: Rng) -> None:
    x, rows = samples(6, rng, net)
    label = net(x).argmax(1)
    rows = Rows(label, rows.index, {"target": (label + 1) % 3})
    seen: dict[int, list[Tensor]] = defaultdict(list)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        for index, point in zip(rows.index.tolist(), x_adv, strict=True):
            seen[index].append(point.clone())

    attack = PMA(threat=THREAT, steps=steps, rescale=False, keep="worst", targeted=targeted)
    attack(net, x, rows, rng=rng, watch=watch)
    for i, index in enumerate(rows.index.tolist()):
        y = int(rows["target"][i] if targeted else rows.y[i])
        expected: list[Tensor] = []
        for run in (0, 1):
            key = rng.fork("start").at(rows.index[i : i + 1]).at(torch.tensor([run]))
            start = THREAT.sample(x[i : i + 1], key)[0]
            expected += by_hand(net, x[i], y, start, run, steps, -1 if targeted else 1)
        torch.testing.assert_close(torch.stack(seen[index]), torch.stack(expected))


class Sharp(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 1000 * self.net(x)
        return logits


def test_rescaled_logits_do_not_saturate(net: Net, rng: Rng) -> None:
    x, rows = samples(60, rng, net)
    net, x = net.float(), x.float()
    sharp = Sharp(net)

    def fooled(model: nn.Module, attack: PMA | PGD) -> int:
        return int((net(attack(model, x, rows, rng=rng)).argmax(1) != rows.y).sum())

    plain, rescaled = PMA(threat=THREAT, steps=10, rescale=False), PMA(threat=THREAT, steps=10)
    best = fooled(net, PMA(threat=THREAT, steps=50, rescale=False))
    assert fooled(sharp, plain) < best
    assert fooled(sharp, rescaled) == fooled(net, rescaled) == best
