"""Residual encoders: numbers of parameters, units compared with explicit code, padding with TensorFlow's rule."""

from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch
from random_norms import randomized
from torch import Tensor, nn
from torch.nn import functional

from holdfast.crafting.view import crafting, described, frozen
from holdfast.models.classifier import Classifier, PerImage
from holdfast.models.encoders._residual import Parts, SameConv2d, Unit
from holdfast.models.encoders.preact_resnet18 import PreActResNet18
from holdfast.models.encoders.resnet20 import ResNet20
from holdfast.models.encoders.resnet50 import ResNet50
from holdfast.models.encoders.wrn import WRN
from holdfast.rng import Rng

CIFAR, TINY = (3, 32, 32), (3, 64, 64)
ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "softplus": nn.Softplus}
SMALL: dict[str, Callable[..., nn.Module]] = {
    "common": lambda **o: WRN((3, 8, 8), width=64, depth=10, **o),
    "madry": lambda **o: WRN((3, 8, 8), width=128, depth=10, form="madry", **o),
    "preact_resnet18": lambda **o: PreActResNet18((3, 8, 8), width=32, **o),
    "resnet20": lambda **o: ResNet20((3, 8, 8), width=32, **o),
    "resnet50": lambda **o: ResNet50((3, 8, 8), width=64, **o),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def count(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def basic(inputs: int, outputs: int) -> int:
    return 9 * (inputs * outputs + outputs * outputs) + 2 * (inputs + outputs)


def bottleneck(inputs: int, hidden: int, outputs: int) -> int:
    kernels = inputs * hidden + 9 * hidden * hidden + hidden * outputs
    return kernels + 2 * (inputs + hidden + hidden)


def wrn_count(units: int, *, shortcuts: bool) -> int:
    total = 9 * 3 * 16 + 2 * 640
    for inputs, outputs in pairwise((16, 160, 320, 640)):
        total += basic(inputs, outputs) + (units - 1) * basic(outputs, outputs) + shortcuts * inputs * outputs
    return total


def test_wrn_34_10_and_28_10() -> None:
    head = 640 * 10 + 10
    assert count(lambda: WRN(CIFAR)) + head == wrn_count(5, shortcuts=True) + head == 46_160_474
    assert count(lambda: WRN(CIFAR, depth=28)) + head == wrn_count(4, shortcuts=True) + head == 36_479_194


def test_madry_has_five_units_per_stage_and_no_weights_in_shortcuts() -> None:
    assert count(lambda: WRN(CIFAR, form="madry")) == wrn_count(5, shortcuts=False) == 45_901_914 - 6410
    with torch.device("meta"):
        net = WRN(CIFAR, form="madry")
    assert [len(stage) for stage in net.stages] == [5, 5, 5]
    assert net.width == 640
    units = [unit for stage in net.stages for unit in stage]
    assert [unit.shared for unit in units] == [True] + 14 * [False]


def test_preact_resnet18_matches_the_cifar_network() -> None:
    total = 9 * 3 * 64 + 2 * 512
    for inputs, outputs in pairwise((64, 64, 128, 256, 512)):
        total += basic(inputs, outputs) + basic(outputs, outputs) + (inputs != outputs) * inputs * outputs
    assert count(lambda: PreActResNet18(CIFAR)) + 512 * 10 + 10 == total + 5130 == 11_172_170


def test_resnet50_has_twelve_bottlenecks() -> None:
    total = 49 * 3 * 64 + 2 * 64 + 2 * 2048
    for (inputs, outputs), units in zip(pairwise((64, 256, 512, 1024, 2048)), (2, 3, 5, 2), strict=True):
        total += bottleneck(inputs, outputs // 4, outputs) + inputs * outputs
        total += (units - 1) * bottleneck(outputs, outputs // 4, outputs)
    assert count(lambda: ResNet50(TINY)) == total == 17_570_240
    extra = 3 * bottleneck(2048, 512, 2048)
    assert count(lambda: ResNet50(TINY, extra_blocks=3)) == total + extra
    assert ResNet50((3, 8, 8), width=32).width == 32


def test_resnet20_has_four_units_each_with_a_shortcut() -> None:
    total = 49 * 3 * 64 + 2 * 64 + 2 * 512
    for inputs, outputs in pairwise((64, 64, 128, 256, 512)):
        total += basic(inputs, outputs) + inputs * outputs
    assert count(lambda: ResNet20(TINY)) == total == 4_908_224


@pytest.mark.parametrize("make", [ResNet20, ResNet50])
@pytest.mark.parametrize(("stem_stride", "last"), [(1, 8), (2, 4)])
def test_the_stem_stride_halves_every_map(make: type[nn.Module], stem_stride: int, last: int) -> None:
    with torch.device("meta"):
        frame = make(TINY, width=64, stem_stride=stem_stride).layers
        sizes = [tuple(frame.stem(torch.empty(1, 3, 64, 64)).shape[2:])]
        x = frame.stem(torch.empty(1, 3, 64, 64))
        for stage in frame.stages:
            x = stage(x)
            sizes.append(tuple(x.shape[2:]))
    first = 8 * last
    assert sizes == [(first, first), (first, first), (first // 2,) * 2, (first // 4,) * 2, (last, last)]
    assert frame.closing(x.new_empty(2, *x.shape[1:])).shape == (2, 64)


def test_wrn_maps_are_32_16_8() -> None:
    with torch.device("meta"):
        for form in ("common", "madry"):
            net = WRN(CIFAR, width=64, depth=10, form=form)
            x, sizes = net.stem(torch.empty(1, *CIFAR)), []
            for stage in net.stages:
                x = stage(x)
                sizes.append(tuple(x.shape[1:]))
            assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(name: str, activation: str) -> None:
    net = SMALL[name](activation=activation)
    used = {type(m) for m in net.modules() if isinstance(m, tuple(ACTIVATIONS.values()))}
    assert used == {ACTIVATIONS[activation]}
    for mode in (True, False):
        features = net.train(mode)(torch.rand(2, 3, 8, 8))
        assert features.shape == (2, net.width)
        assert features.isfinite().all()
        assert features.std() > 0
    assert net(torch.rand(1, 3, 8, 8)).shape == (1, net.width)


def test_default_activations_are_those_of_the_originals() -> None:
    kinds = {name: {type(m) for m in make().modules()} & set(ACTIVATIONS.values()) for name, make in SMALL.items()}
    assert kinds.pop("madry") == {nn.LeakyReLU}
    assert set(map(frozenset, kinds.values())) == {frozenset({nn.ReLU})}


@pytest.mark.parametrize("name", ["common", "madry", "resnet20", "resnet50"])
def test_convolutions_are_initialized_he_normal_by_fan_out(name: str) -> None:
    convolutions = [m for m in SMALL[name]().modules() if isinstance(m, nn.Conv2d)]
    assert all(conv.bias is None for conv in convolutions)
    scaled = [m.weight.flatten() / sqrt(2 / (m.out_channels * m.kernel_size[0] ** 2)) for m in convolutions]
    assert torch.cat(scaled).std().item() == pytest.approx(1, rel=0.03)


def normed(part: nn.Module, x: Tensor, eps: float) -> Tensor:
    column = [t.detach()[:, None, None] for t in (part.running_mean, part.running_var, part.weight, part.bias)]
    mean, var, weight, bias = column
    return (x - mean) / (var + eps).sqrt() * weight + bias


def test_madry_units_agree_with_explicit_computation() -> None:
    """The shortcut of unit 0 starts after the first activation, the shortcuts of later units before it."""
    net = randomized(SMALL["madry"]()).double()
    x = torch.rand(2, 16, 6, 6, dtype=torch.float64)
    for stage, stride, shared in zip(net.stages, (1, 2, 2), (True, False, False), strict=True):
        unit = stage[0]
        opened = functional.leaky_relu(normed(unit.opening[0], x, 1e-3), 0.1)
        ends = (1, 1, 1, 1) if stride == 1 or x.shape[2] % 2 else (0, 1, 0, 1)
        y = functional.conv2d(functional.pad(opened, ends), unit.body[0].weight, stride=stride)
        y = functional.leaky_relu(normed(unit.body[1], y, 1e-3), 0.1)
        y = functional.conv2d(y, unit.body[3].weight, padding=1)
        start = opened if shared else x
        short = torch.zeros_like(y)
        before = (y.shape[1] - x.shape[1]) // 2
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                window = start[:, :, stride * i : stride * (i + 1), stride * j : stride * (j + 1)]
                short[:, before : before + x.shape[1], i, j] = window.mean((2, 3))
        torch.testing.assert_close(unit(x), y + short)
        x = unit(x)
    features = functional.leaky_relu(normed(net.closing[0], x, 1e-3), 0.1).mean((2, 3))
    torch.testing.assert_close(net.closing(x), features)


@pytest.mark.parametrize("name", ["common", "preact_resnet18"])
def test_common_units_agree_with_explicit_computation(name: str) -> None:
    """The 1x1 shortcut starts after the first activation, the identity before it."""
    net = randomized(SMALL[name]()).double()
    x = torch.rand(2, net.stem.out_channels, 6, 6, dtype=torch.float64)
    for unit in (unit for stage in net.stages for unit in stage):
        convolved = isinstance(unit.shortcut, nn.Conv2d)
        opened = normed(unit.opening[0], x, 1e-5).relu()
        stride = unit.body[0].stride[0]
        y = functional.conv2d(opened, unit.body[0].weight, stride=stride, padding=1)
        y = functional.conv2d(normed(unit.body[1], y, 1e-5).relu(), unit.body[3].weight, padding=1)
        short = functional.conv2d(opened, unit.shortcut.weight, stride=stride) if convolved else x
        assert convolved == (x.shape != y.shape)
        torch.testing.assert_close(unit(x), y + short)
        x = unit(x)


def test_tla_bottlenecks_agree_with_explicit_computation() -> None:
    """The stride is in the first 1x1 convolution and the shortcut starts from the raw input."""
    net = randomized(SMALL["resnet50"]()).double()
    unit, x = net.layers.stages[1][0], torch.rand(2, 8, 6, 6, dtype=torch.float64)
    y = functional.conv2d(normed(unit.opening[0], x, 1e-3).relu(), unit.body[0].weight, stride=2)
    y = functional.conv2d(normed(unit.body[1], y, 1e-3).relu(), unit.body[3].weight, padding=1)
    y = functional.conv2d(normed(unit.body[4], y, 1e-3).relu(), unit.body[6].weight)
    torch.testing.assert_close(unit(x), y + functional.conv2d(x, unit.shortcut.weight, stride=2))


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (9, 8), (5, 6)])
def test_same_padding_agrees_with_tensorflow(kernel: int, stride: int, size: tuple[int, int], rng: Rng) -> None:
    """TensorFlow's rule: ceil(n / s) outputs, with the smaller half of the padding first."""
    conv = Parts("relu", tensorflow=True).conv(2, 3, kernel, stride).double()
    assert isinstance(conv, SameConv2d) == (kernel > 1 and stride > 1)
    x = rng.uniform(torch.empty(1, 2, *size, dtype=torch.float64))
    rows = [-(-n // stride) for n in size]
    total = [max((r - 1) * stride + kernel - n, 0) for r, n in zip(rows, size, strict=True)]
    image = np.zeros((2, *(n + t for n, t in zip(size, total, strict=True))))
    top, left = (t // 2 for t in total)
    image[:, top : top + size[0], left : left + size[1]] = x[0].numpy()
    weight, expected = conv.weight.detach().numpy(), np.empty((3, *rows))
    for i in range(rows[0]):
        for j in range(rows[1]):
            window = image[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            expected[:, i, j] = (weight * window).sum((1, 2, 3))
    np.testing.assert_allclose(conv(x)[0].detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("make", [ResNet20, ResNet50])
def test_extra_blocks_run_in_training_only(make: type[nn.Module], rng: Rng) -> None:
    net, x = make((3, 8, 8), width=32, extra_blocks=3), torch.rand(4, 3, 8, 8)
    ran: list[int] = []
    for block in net.layers.extra:
        block.register_forward_hook(lambda *_: ran.append(1))
    long = net.train()(x)
    assert len(ran) == 3
    long.sum().backward()
    assert all(p.grad is not None for p in net.layers.extra.parameters())
    with frozen(net, rng) as view:
        view(x)  # crafting uses eval mode
    short = net.eval()(x)
    assert len(ran) == 3
    plain = make((3, 8, 8), width=32)
    kept = {name: t for name, t in net.state_dict().items() if ".extra." not in name}
    plain.load_state_dict(kept)
    assert torch.equal(plain.eval()(x), short)


@pytest.mark.parametrize("name", SMALL)
def test_attacks_fold_every_residual_encoder(name: str, rng: Rng) -> None:
    """Crafting folds batch norm only in networks that can be traced, so encoders must not branch on sizes."""
    encoder = SMALL[name]()
    model = Classifier(encoder, nn.Linear(encoder.width, 10), PerImage()).eval()
    assert described(model)["folded"] is True
    x = torch.rand(3, 3, 8, 8)
    with crafting(model, rng) as view:
        torch.testing.assert_close(view(x), model(x), atol=1e-4, rtol=1e-4)
    assert described(model)["folded"] is True


def test_units_have_the_given_widths_and_kernels() -> None:
    unit = Unit(Parts("relu"), (4, 2, 2, 8), (1, 3, 1), 2)
    convolutions = [m for m in unit.body if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, *c.kernel_size, *c.stride) for c in convolutions] == [
        (4, 2, 1, 1, 2, 2),
        (2, 2, 3, 3, 1, 1),
        (2, 8, 1, 1, 1, 1),
    ]


@pytest.mark.parametrize("depth", [4, 9, 20, 35])
def test_impossible_depths_are_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth is {depth} but a wide residual network has 6 n \+ 4 layers"):
        WRN(CIFAR, depth=depth)


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="form is 'wide' but must be one of common, madry"):
        WRN(CIFAR, form="wide")
