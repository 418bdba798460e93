"""Recorded and reused batch statistics, compared with torch's batch norm and with explicit formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from holdfast.crafting.view import crafting
from holdfast.models.batch_statistics import record_batch_statistics, reuse_batch_statistics
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
def test_recording_does_not_change_a_training_pass(
    shape: tuple[int, ...], options: dict[str, object], rng: Rng
) -> None:
    ours, theirs = pair(lambda: norm(shape, **options))
    x = draw(rng, shape, "x").requires_grad_()
    for _ in range(2):
        with record_batch_statistics(ours) as recorded:
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
    assert len(recorded) == 1
    assert type(ours).__name__.startswith("BatchNorm")
    assert "forward" not in vars(ours)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_other_batches_are_normalized_by_recorded_statistics(shape: tuple[int, ...], training: bool, rng: Rng) -> None:
    layer = norm(shape)
    x, other = draw(rng, shape, "x"), draw(rng, shape, "other")
    with record_batch_statistics(layer) as recorded:
        layer(x)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.train(training)
    with reuse_batch_statistics(recorded):
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


def test_gradients_flow_through_recorded_statistics(rng: Rng) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).double()
    x, other = draw(rng, (6, 3), "x"), draw(rng, (6, 3), "other")

    def value(weight: Tensor) -> Tensor:
        hidden, moved = x @ weight.T, other @ weight.T
        normal = (moved - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
        return normal.pow(3).sum()

    with record_batch_statistics(net) as recorded:
        net(x)
    with reuse_batch_statistics(recorded):
        (found,) = torch.autograd.grad(net(other).pow(3).sum(), net[0].weight)
    weight = net[0].weight.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(weight), weight)
    torch.testing.assert_close(found, expected)


def test_attacks_use_reused_statistics(rng: Rng) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double().train()
    x, other = draw(rng, (6, 3), "x"), draw(rng, (6, 3), "other")
    with record_batch_statistics(net) as recorded:
        net(x)
    with reuse_batch_statistics(recorded):
        expected = net(other)
        with crafting(net, rng) as view:
            torch.testing.assert_close(view(other), expected)
            assert type(view).__name__ == "_Fast"
            assert view._fast is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["record", "reuse"])
def test_layers_are_restored_after_an_exception(context: str, rng: Rng) -> None:
    layer = norm((6, 5))
    mean = layer.running_mean
    with record_batch_statistics(layer) as recorded:
        layer(draw(rng, (6, 5), "x"))
    manager = record_batch_statistics(layer) if context == "record" else reuse_batch_statistics(recorded)
    with pytest.raises(RuntimeError, match="broke"), manager:
        raise RuntimeError("broke")
    assert layer.running_mean is mean
    assert "forward" not in vars(layer)


def test_layers_in_eval_mode_are_not_recorded(rng: Rng) -> None:
    layer, x = norm((6, 5)).eval(), draw(rng, (6, 5), "x")
    with record_batch_statistics(layer) as recorded:
        found = layer(x)
    assert recorded == []
    assert torch.equal(found, layer(x))
