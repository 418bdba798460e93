"""Custom batch norm compared with torch's; first and second derivatives compared with finite differences."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.models.batch_norm import RunningStatistics, Statistics, normalize_batch, normalize_with
from holdfast.rng import Rng

SHAPES: dict[str, tuple[int, ...]] = {"1d": (6, 3), "sequences": (4, 3, 2), "2d": (3, 3, 2, 2)}
EPS = 1e-3


def draw(name: str, *shape: int) -> Tensor:
    return Rng(0).fork(name).normal(torch.empty(shape, dtype=torch.float64)).mul(2).add(0.5).requires_grad_()


def running() -> RunningStatistics:
    return RunningStatistics(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), 0.1)


def weights(affine: str) -> tuple[Tensor | None, Tensor | None]:
    weight = draw("weight", 3).detach()
    if affine == "zero":
        weight[1] = 0
    weight.requires_grad_()
    return (None if affine == "none" else weight), (None if affine in ("none", "no bias") else draw("bias", 3))


AFFINE = ["both", "no bias", "none", "zero"]


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_derivatives_of_normalize_batch(shape: tuple[int, ...], affine: str) -> None:
    wanted = [draw("x", *shape), *(tensor for tensor in weights(affine) if tensor is not None)]
    count = len(wanted)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        weight, bias = (*tensors[1:], None, None)[:2]
        y, statistics = normalize_batch(tensors[0], weight, bias, running(), EPS)
        return y, *statistics

    assert count == {"both": 3, "no bias": 2, "none": 1, "zero": 3}[affine]
    assert torch.autograd.gradcheck(run, wanted)
    assert torch.autograd.gradgradcheck(run, wanted)


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_derivatives_of_normalize_with(shape: tuple[int, ...], affine: str) -> None:
    weight, bias = weights(affine)
    mean, inverse_std = draw("mean", 3), draw("inverse_std", 3).detach().abs().add(0.3).requires_grad_()
    affines = [tensor for tensor in (weight, bias) if tensor is not None]

    def run(x: Tensor, mean: Tensor, inverse_std: Tensor, *affines: Tensor) -> Tensor:
        weight, bias = (*affines, None, None)[:2]
        return normalize_with(x, weight, bias, Statistics(mean, inverse_std))

    assert torch.autograd.gradcheck(run, [draw("x", *shape), mean, inverse_std, *affines])
    assert torch.autograd.gradgradcheck(run, [draw("x", *shape), mean, inverse_std, *affines])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_and_statistics_agree_with_torch(shape: tuple[int, ...]) -> None:
    x, weight, bias = draw("x", *shape), draw("weight", 3), draw("bias", 3)
    mine, theirs = running(), running()
    y, (mean, inverse_std) = normalize_batch(x, weight, bias, mine, EPS)
    torch.testing.assert_close(y, F.batch_norm(x, theirs.mean, theirs.variance, weight, bias, True, 0.1, EPS))
    torch.testing.assert_close(mine[:2], theirs[:2])
    flat = x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, flat.mean(1))
    torch.testing.assert_close(inverse_std, (flat.var(1, correction=0) + EPS).rsqrt())
    torch.testing.assert_close(normalize_with(x, weight, bias, Statistics(mean, inverse_std)), y)


def test_double_backward_agrees_with_torch_for_channels_last() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    norm, along = nn.BatchNorm2d(3, eps=EPS), torch.randn(4, 3, 5, 5)
    nn.init.normal_(norm.weight)
    found = []
    for mine in (True, False):
        y = (
            normalize_batch(x, norm.weight, norm.bias, RunningStatistics(torch.zeros(3), torch.ones(3), 0.1), EPS)[0]
            if mine
            else norm(x)
        )
        (gradient,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((gradient * along).sum() + y.sum(), [x, norm.weight]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
