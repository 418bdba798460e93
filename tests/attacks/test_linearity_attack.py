"""The linearity attack agrees with the same steps written out, and more steps find a larger gap."""

import pytest
import torch
from subjects import Net, samples
from torch import Tensor, nn

from holdfast.attacks.linearity import Linearity
from holdfast.contracts import Meter, Rows
from holdfast.crafting import microbatch
from holdfast.geometry import LInf, Threat
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)


def loss_and_gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    here = x.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(here), y, reduction="none")
    return loss.detach(), torch.autograd.grad(loss.sum(), here)[0]


def gap(model: nn.Module, x: Tensor, y: Tensor, point: Tensor) -> Tensor:
    """l(x + d) - l(x) - d·grad l(x), with its sign."""
    loss, slope = loss_and_gradient(model, x, y)
    return loss_and_gradient(model, point, y)[0] - loss - ((point - x) * slope).flatten(1).sum(1)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_agrees_with_the_steps_written_out(steps: int, rng: Rng) -> None:
    model = Net().double().eval()
    x, rows = samples(6, rng, model)
    found = Linearity(threat=THREAT, steps=steps, step=0.03)(model, x, rows, rng=rng)
    point = THREAT.sample(x, rng.fork("start").at(rows.index).at(torch.zeros(6, dtype=torch.int64)))
    _, slope = loss_and_gradient(model, x, rows.y)
    for _ in range(steps):
        side = gap(model, x, rows.y, point).sign().reshape(-1, 1, 1, 1)
        # the gradient of the gap: that of l at the point minus the constant one of the expansion
        step = side * (loss_and_gradient(model, point, rows.y)[1] - slope)
        point = THREAT.project(point + 0.03 * step.sign(), x)
    torch.testing.assert_close(found, point, rtol=0, atol=1e-9)


def test_more_steps_find_a_larger_gap(rng: Rng) -> None:
    model = Net().double().eval()
    x, rows = samples(40, rng, model)
    widths = [
        gap(model, x, rows.y, Linearity(threat=THREAT, steps=steps, step=step)(model, x, rows, rng=rng)).abs().mean()
        for steps, step in ((1, 1e-9), (2, 0.05), (20, 0.02))
    ]
    assert widths[0] < widths[1] < widths[2]


def test_uses_micro_batches_and_counts_the_cost_of_the_expansion(rng: Rng) -> None:
    model = Net().double().eval()
    x, rows = samples(10, rng, model)
    attack, meter = Linearity(threat=THREAT, steps=3), Meter()
    whole = attack(model, x, rows, rng=rng, watch=meter)
    with microbatch.micro(3):
        parts = attack(model, x, rows, rng=rng)
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-9)
    assert (meter.cost.forwards, meter.cost.backwards) == (40, 40)


def test_empty_batches_and_bad_settings(rng: Rng) -> None:
    model = Net().double().eval()
    x, rows = samples(4, rng, model)
    attack = Linearity(threat=THREAT)
    assert len(attack(model, x[:0], rows.take(torch.arange(0)), rng=rng)) == 0
    with pytest.raises(ValueError, match=r"labels span 9\.\.9 but the model has classes 0\.\.2"):
        attack(model, x, Rows(torch.full((4,), 9), rows.index), rng=rng)
    with pytest.raises(ValueError, match="rule is 'up' but it must be one of steepest, adam"):
        Linearity(threat=THREAT, rule="up")  # type: ignore[arg-type]
