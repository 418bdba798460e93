"""Sketches of attacks with a loop of their own, RayS and DeepFool, and of a minimal-norm attack by the shared loop."""

from dataclasses import dataclass, replace

import pytest
import torch
from small import half_spaces, linear, numbers
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks.bim import BIM
from holdfast.contracts import Cost, Outputs, Rows, Watch
from holdfast.crafting.view import frozen
from holdfast.geometry import L2, LInf, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class RayS(StandaloneAttack):
    threat: Threat
    levels: int = 4
    bisections: int = 20
    keep = "closest"

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        rows, sign = Rows.of(y), torch.ones_like(x)
        best = x.new_full((len(x),), self.threat.high - self.threat.low)

        def fools(d: Tensor, sign: Tensor, who: Tensor) -> Tensor:
            x_adv = (x[who] + d[:, None] * sign).clamp(self.threat.low, self.threat.high)
            wrong = view(x_adv).argmax(1) != rows.y[who]
            if watch is not None:  # a hard-label attack sees nothing but the zero-one loss
                watch(rows.take(who), x_adv, wrong.to(x), Cost(forwards=len(x_adv)))
            return wrong

        with torch.no_grad(), frozen(model, rng) as view:
            for level in range(self.levels):
                for block in torch.arange(x.shape[1]).chunk(2**level):
                    turned = sign.clone()
                    turned[:, block] *= -1
                    who = torch.arange(len(x))
                    who = who[fools(best, turned, who)]
                    low, high = torch.zeros_like(best[who]), best[who]
                    for _ in range(self.bisections):
                        middle = (low + high) / 2
                        wrong = fools(middle, turned[who], who)
                        low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
                    best[who], sign[who] = high, turned[who]
            found = fools(best, sign, torch.arange(len(x)))
        x_adv = (x + best[:, None] * sign).clamp(self.threat.low, self.threat.high)
        return torch.where((found & self.threat.contains(x_adv, x))[:, None], x_adv, x)


class HardLabel(nn.Module):
    """Returns the one-hot predicted class and counts the queries."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.queries = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.queries += len(x)
        z = self.model(x)
        return functional.one_hot(z.argmax(1), z.shape[1]).to(x)


@pytest.mark.parametrize("classes", [2, 4])
def test_rays_bounds_the_closed_form_from_above_and_reports_its_queries(classes, rng):
    model, x, costs = linear(8, classes), numbers(12, 8, name="x") / 5 + 0.4, []
    y, exact = half_spaces(model, x, norm=1)
    hard = HardLabel(model)
    attack = RayS(threat=Threat(LInf(), torch.inf))
    x_adv = attack(hard, x, y, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    total = sum(costs, Cost())
    assert total == Cost(forwards=hard.queries, backwards=0)
    distance, fooled = LInf().length(x_adv - x), model(x_adv).argmax(1) != y
    assert fooled.sum() >= 6
    assert (distance >= exact - 1e-9)[fooled].all()
    if classes == 2:  # one hyperplane: flipping single coordinates finds its sign vector, so the bound is tight
        free = fooled & (exact < 0.4)  # the box does not interfere
        assert free.sum() >= 6
        torch.testing.assert_close(distance[free], exact[free], rtol=0, atol=1e-5)
    eps = distance[fooled].median().item()
    capped = attack.at(eps)(hard, x, y, rng=rng)
    assert torch.equal(model(capped).argmax(1) != y, fooled & (distance <= eps * (1 + 1e-5) + 1e-7))


@dataclass(frozen=True, kw_only=True)
class DeepFool(StandaloneAttack):
    threat: Threat
    steps: int = 20
    overshoot: float = 1e-6
    keep = "closest"

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        rows, x_adv = Rows.of(y), x.clone()
        with frozen(model, rng) as view:
            for _ in range(self.steps):
                here = x_adv.detach().requires_grad_()
                z = view.outputs(here).logits
                left = z.argmax(1) == rows.y
                grads = torch.stack([torch.autograd.grad(k.sum(), here, retain_graph=True)[0] for k in z.unbind(1)], 1)
                if watch is not None:
                    watch(rows, x_adv, cross_entropy(Outputs(here, z, z), rows).detach(), Cost(len(x), z.numel()))
                w = grads - grads[torch.arange(len(x)), rows.y][:, None]
                fall = (z.gather(1, rows.y[:, None]) - z).detach()
                far = torch.where(w.square().sum(2) > 0, fall / w.norm(dim=2), torch.inf)
                away = w[torch.arange(len(x)), far.argmin(1)]
                step = (far.amin(1)[:, None] + self.overshoot) * away / away.norm(dim=1, keepdim=True)
                x_adv = torch.where(left[:, None], x_adv + step, x_adv)
        return x_adv


EVERYWHERE = Threat(L2(), torch.inf, -torch.inf, torch.inf)


def test_deepfool_finds_the_closed_form_distance_of_a_linear_model(rng):
    model, x, costs = linear(5, 4), 4 * numbers(10, 5, name="x") - 2, []
    y, exact = half_spaces(model, x, norm=2)
    attack = DeepFool(threat=EVERYWHERE, steps=2)
    x_adv = attack(model, x, y, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    assert (model(x_adv).argmax(1) != y).all()
    assert EVERYWHERE.contains(x_adv, x).all()
    torch.testing.assert_close(L2().length(x_adv - x), exact, rtol=0, atol=2e-6)
    assert costs == [Cost(10, 40)] * 2


def test_the_loop_finds_the_closest_point_without_a_budget(rng):
    model, x = linear(5, 2), 4 * numbers(10, 5, name="x") - 2
    attack = BIM(threat=replace(EVERYWHERE, norm=LInf()), steps=400, step=0.02, keep="closest")
    y, exact = half_spaces(model, x, norm=1)
    x_adv = attack(model, x, y, rng=rng)
    assert (model(x_adv).argmax(1) != y).all()
    distance = LInf().length(x_adv - x)
    assert (distance >= exact).all()
    assert (distance <= exact + 0.02 + 1e-9).all()
