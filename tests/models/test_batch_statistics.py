"""Batch statistics noted in one pass and used in others, against torch's own batch norm and numbers by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from holdfast.crafting.view import crafting
from holdfast.models.batch_statistics import noting, reusing
from holdfast.rng import Rng

SHAPES: dict[str, tuple[int, ...]] = {"1d": (6, 5), "1d of sequences": (6, 5, 7), "2d": (6, 5, 3, 4)}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def norm(shape: tuple[int, ...], **options: object) -> nn.BatchNorm1d | nn.BatchNorm2d:
    made = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(5, **options).double()  # type: ignore[arg-type]
    if made.affine:
        nn.init.normal_(made.weight)
        nn.init.normal_(made.bias)
    made.running_mean.normal_()
    made.running_var.uniform_(0.5, 2)
    return made


def draw(rng: Rng, shape: tuple[int, ...], name: str) -> Tensor:
    return 1 + 2 * rng.fork(name).normal(torch.empty(shape, dtype=torch.float64))


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    first = make()
    second = make()
    second.load_state_dict(first.state_dict())
    return first, second


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"momentum": 0.3, "eps": 0.1}])
def test_the_noting_pass_is_a_training_pass_as_any(
    shape: tuple[int, ...], options: dict[str, object], rng: Rng
) -> None:
    ours, theirs = pair(lambda: norm(shape, **options))
    x = draw(rng, shape, "x").requires_grad_()
    for _ in range(2):
        with noting(ours) as notes:
            found = ours(x)
        expected = theirs(x)
        torch.testing.assert_close(found, expected)
        weights = draw(rng, shape, "w")
        wanted = [x, *ours.parameters()]
        grads = torch.autograd.grad((found * weights).sum(), wanted)
        others = torch.autograd.grad((expected * weights).sum(), [x, *theirs.parameters()])
        for mine, other in zip(grads, others, strict=True):
            torch.testing.assert_close(mine, other)
        for key, value in ours.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[key])
    assert len(notes) == 1
    assert type(ours).__name__.startswith("BatchNorm")
    assert "forward" not in vars(ours)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_other_batches_are_normalized_by_what_was_noted(shape: tuple[int, ...], training: bool, rng: Rng) -> None:
    layer = norm(shape)
    x, other = draw(rng, shape, "x"), draw(rng, shape, "other")
    with noting(layer) as notes:
        layer(x)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.train(training)
    with reusing(notes):
        found = layer(other)
        inside = (layer.running_mean.clone(), layer.running_var.clone())
    flat = x.transpose(0, 1).flatten(1)
    mean, variance = flat.mean(1), flat.var(1, correction=0)
    torch.testing.assert_close(inside, (mean, variance))
    sizes = [1, 5, *[1] * (len(shape) - 2)]
    by_hand = (other - mean.reshape(sizes)) / (variance.reshape(sizes) + layer.eps).sqrt()
    torch.testing.assert_close(found, by_hand * layer.weight.reshape(sizes) + layer.bias.reshape(sizes))
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())
    assert "forward" not in vars(layer)


def test_gradients_reach_what_the_statistics_were_made_of(rng: Rng) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).double()
    x, other = draw(rng, (6, 3), "x"), draw(rng, (6, 3), "other")

    def value(weight: Tensor) -> Tensor:
        hidden, moved = x @ weight.T, other @ weight.T
        normal = (moved - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
        return normal.pow(3).sum()

    with noting(net) as notes:
        net(x)
    with reusing(notes):
        (found,) = torch.autograd.grad(net(other).pow(3).sum(), net[0].weight)
    weight = net[0].weight.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(weight), weight)
    torch.testing.assert_close(found, expected)


def test_the_folded_view_of_attacks_uses_them_too(rng: Rng) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double().train()
    x, other = draw(rng, (6, 3), "x"), draw(rng, (6, 3), "other")
    with noting(net) as notes:
        net(x)
    with reusing(notes):
        expected = net(other)
        with crafting(net, rng) as view:
            torch.testing.assert_close(view(other), expected)
            assert type(view).__name__ == "_Fast"
            assert view._fast is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["noting", "reusing"])
def test_everything_is_put_back_after_an_exception(where: str, rng: Rng) -> None:
    layer = norm((6, 5))
    mean = layer.running_mean
    with noting(layer) as notes:
        layer(draw(rng, (6, 5), "x"))
    with pytest.raises(RuntimeError, match="broke"), noting(layer) if where == "noting" else reusing(notes):
        raise RuntimeError("broke")
    assert layer.running_mean is mean
    assert "forward" not in vars(layer)


def test_a_layer_in_eval_mode_is_left_alone(rng: Rng) -> None:
    layer, x = norm((6, 5)).eval(), draw(rng, (6, 5), "x")
    with noting(layer) as notes:
        found = layer(x)
    assert notes == []
    assert torch.equal(found, layer(x))
