"""Sketches of inner maximizations by the shared loop: the divergence of TRADES and the gap of LLR."""

from dataclasses import dataclass

import pytest
import torch
from small import linear, network, numbers
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._ascent import Loop
from holdfast.attacks._rules import Point, State
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Loss, Outputs, Rows
from holdfast.geometry import LInf, Threat
from holdfast.models.classifier import adapt


def kl(out: Outputs, rows: Rows) -> Tensor:
    p, q = rows["logits"].log_softmax(1), out.logits.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def test_the_inner_attack_of_trades_is_per_sample_while_samples_leave(rng, monkeypatch):
    monkeypatch.setattr("holdfast.crafting.microbatch.size", lambda: 5)  # so that slots are refilled
    x, model, sizes = numbers(14, 4, name="x"), network(), []
    clean = model(x).detach()
    rows = Rows(clean.argmax(1), torch.randperm(14, generator=rng.generator()) + 100, {"logits": clean})
    attack = PGD(threat=Threat(LInf(), 0.15), steps=6, restarts=2, loss=kl)
    together = attack(model, x, rows, rng=rng, watch=lambda r, x_adv, loss, cost: sizes.append(len(r)))
    alone = [attack(model, x[[i]], rows.take(torch.tensor([i])), rng=rng) for i in range(14)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-9)
    fooled = model(together).argmax(1) != rows.y
    assert 0 < fooled.sum() < 14  # some samples stop early, some take all steps
    assert set(sizes) > {5}
    moved = kl(adapt(model).outputs(together), rows)
    by_torch = functional.kl_div(model(together).log_softmax(1), clean.softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(moved, by_torch)


@dataclass(frozen=True)
class Gap:
    loss: Loss

    def __call__(self, out: Outputs, rows: Rows) -> Tensor:
        along = ((out.x - rows["x"]) * rows["gradient"]).flatten(1).sum(1)
        return (self.loss(out, rows) - rows["loss"] - along).abs()

    def expand(self, model: nn.Module, x: Tensor, y: Tensor, index: Tensor, *, graph: bool = False) -> Rows:
        here = x.clone().requires_grad_()
        value = self.loss(adapt(model).outputs(here), Rows(y, index))
        (gradient,) = torch.autograd.grad(
            value.sum(), here, create_graph=graph
        )  # of the sum, so that each row is the gradient of one sample
        kept = (value, gradient) if graph else (value.detach(), gradient.detach())
        return Rows(y, index, {"x": x, "loss": kept[0], "gradient": kept[1]})


class Bowl(nn.Module):
    """Two logits, a.x²/2 and -1."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]).double())

    def forward(self, x: Tensor) -> Tensor:
        value = (self.a * x.square()).sum(1) / 2
        return torch.stack([value, -torch.ones_like(value)], 1)


@dataclass(frozen=True)
class Adam:
    """The step rule of LLR's inner loop; its state has one row per sample, so samples can leave and enter."""

    rate: float = 0.1

    def begin(self, x_adv: Tensor) -> State:
        return torch.zeros_like(x_adv), torch.zeros_like(x_adv)

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        mean, square = 0.9 * state[0] + 0.1 * point.grad, 0.999 * state[1] + 0.001 * point.grad.square()
        t = point.t[:, None] + 1
        step = mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-9)
        return point.project(point.x_adv + self.rate * step), (mean, square)


def first_logit(out: Outputs, rows: Rows) -> Tensor:
    return out.logits[:, 0]


def test_llr_gap_is_zero_for_a_linear_loss_and_the_second_order_term_for_a_quadratic_one(rng):
    x, y, index, gap = numbers(6, 4, name="x"), torch.zeros(6, dtype=torch.int64), torch.arange(6), Gap(first_logit)
    flat, bowl, moved = linear(4, 2), Bowl(), numbers(6, 4, name="moved")
    assert gap(adapt(flat).outputs(moved), gap.expand(flat, x, y, index)).abs().max() < 1e-14
    found = gap(adapt(bowl).outputs(moved), gap.expand(bowl, x, y, index)).tolist()
    for i in range(6):
        expected = sum(bowl.a[k].item() * (moved[i, k] - x[i, k]).item() ** 2 / 2 for k in range(4))
        assert found[i] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rule", ["steepest", "adam"])
def test_the_loop_finds_the_maximum_of_the_llr_gap_and_its_training_gradient_includes_the_clean_gradient(rule, rng):
    x, y, index = numbers(6, 4, name="x") / 2 + 0.25, torch.zeros(6, dtype=torch.int64), torch.arange(6)
    gap, bowl = Gap(first_logit), Bowl()
    threat, rows = Threat(LInf(), 0.2), gap.expand(bowl, x, y, index)
    by_adam = Loop(threat=threat, loss=gap, rule=Adam(), keep="last", start="random", steps=10)
    attack = by_adam if rule == "adam" else PGD(threat=threat, steps=10, loss=gap, keep="worst")
    x_adv = attack(bowl, x, rows, rng=rng, watch=None)
    largest = 0.2**2 * bowl.a.sum() / 2  # at the corners of the ball
    value = gap(adapt(bowl).outputs(x_adv), gap.expand(bowl, x, y, index, graph=True))
    torch.testing.assert_close(value, largest.expand(6))
    value.mean().backward()
    # d/da of a.d²/2; with the clean gradient held fixed it would be a.(x_adv² - x²)/2
    torch.testing.assert_close(bowl.a.grad, (x_adv - x).square().mean(0) / 2)
