"""Losses on the linear expansion of the cross entropy, compared with loops over Python floats."""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.losses.linearity import curvature, gradient_norm, linear_change, linearity_gap
from holdfast.rng import Rng


def case(rng: Rng) -> tuple[Outputs, Rows]:
    def draw(name: str, *shape: int) -> Tensor:
        return rng.fork(name).normal(torch.empty(4, *shape, dtype=torch.float64))

    given = {name: draw(name, 2, 3) for name in ("x", "gradient", "moved_gradient")} | {"loss": draw("loss")}
    return Outputs(draw("moved", 2, 3), draw("f", 2), draw("z", 3)), Rows(
        torch.tensor([0, 2, 1, 1]), torch.arange(4), given
    )


def flat(values: Tensor, i: int) -> list[float]:
    numbers: list[float] = values[i].flatten().tolist()
    return numbers


def along(out: Outputs, rows: Rows, i: int) -> float:
    parts = zip(flat(out.x, i), flat(rows["x"], i), flat(rows["gradient"], i), strict=True)
    return sum((moved - x) * g for moved, x, g in parts)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_linearity_gap_is_the_absolute_deviation_from_the_expansion(smoothing: float, rng: Rng) -> None:
    out, rows = case(rng)
    by_hand = []
    for i in range(4):
        z = flat(out.logits, i)
        total = log(sum(exp(v) for v in z))
        target = [(1 - smoothing) * (k == rows.y[i].item()) + smoothing / 3 for k in range(3)]
        loss = sum(t * (total - v) for t, v in zip(target, z, strict=True))
        by_hand.append(abs(loss - rows["loss"][i].item() - along(out, rows, i)))
    assert linearity_gap(out, rows, smoothing=smoothing).tolist() == pytest.approx(by_hand, abs=1e-12)


def test_linear_change_is_a_dot_product_per_sample(rng: Rng) -> None:
    out, rows = case(rng)
    assert linear_change(out, rows).tolist() == pytest.approx([abs(along(out, rows, i)) for i in range(4)], abs=1e-12)
    swapped = rows.take(torch.tensor([1, 0, 3, 2]))
    assert not torch.allclose(linear_change(out, rows), linear_change(out, swapped))


def test_gradient_norm_and_curvature_are_l2_norms(rng: Rng) -> None:
    out, rows = case(rng)
    lengths = [sqrt(sum(g * g for g in flat(rows["gradient"], i))) for i in range(4)]
    moved = [flat(rows["moved_gradient"] - rows["gradient"], i) for i in range(4)]
    assert gradient_norm(out, rows).tolist() == pytest.approx(lengths, abs=1e-12)
    assert curvature(out, rows).tolist() == pytest.approx([sqrt(sum(v * v for v in m)) for m in moved], abs=1e-12)


def test_curvature_of_zero_has_a_zero_gradient_and_not_nan(rng: Rng) -> None:
    out, rows = case(rng)
    gradient = rows["gradient"].clone().requires_grad_()
    same = Rows(rows.y, rows.index, {"gradient": gradient, "moved_gradient": gradient.detach()})
    (found,) = torch.autograd.grad(curvature(out, same).sum(), gradient)
    assert torch.equal(found, torch.zeros_like(found))
