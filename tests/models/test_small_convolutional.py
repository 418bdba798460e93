"""The two small convolutional networks: order of the layers and numbers of parameters."""

from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from holdfast.models.encoders.convnet import ConvNet
from holdfast.models.encoders.madry_cnn import MadryCNN

ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "softplus": nn.Softplus}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def layers_run(net: nn.Module, x: Tensor) -> list[tuple[str, tuple[int, ...]]]:
    sizes: list[tuple[str, tuple[int, ...]]] = []

    def note(module: nn.Module, _: object, out: Tensor) -> None:
        sizes.append((type(module).__name__, tuple(out.shape[1:])))

    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(note)
    net.eval()(x)
    return sizes


def test_convnet_matches_the_rebuttal() -> None:
    net = ConvNet((3, 32, 32))
    convolutions = 25 * (3 * 32 + 32 * 32 + 32 * 64) + 16 * 64 * 128
    assert count(net) == convolutions + 2 * (32 + 32 + 64 + 128) == 210_784
    assert net.width == 128
    expected: list[tuple[str, tuple[int, ...]]] = []
    for channels, size, pool in ((32, 32, "MaxPool2d"), (32, 16, "AvgPool2d"), (64, 8, "AvgPool2d")):
        expected += [(kind, (channels, size, size)) for kind in ("Conv2d", "BatchNorm2d", "ReLU")]
        expected += [(pool, (channels, size // 2, size // 2))]
    expected += [(kind, (128, 1, 1)) for kind in ("Conv2d", "BatchNorm2d", "ReLU")]
    assert layers_run(net, torch.rand(2, 3, 32, 32)) == [*expected, ("Flatten", (128,))]


def test_convnet_is_initialized_he_normal_by_fan_out() -> None:
    for conv in (m for m in ConvNet((3, 32, 32)).modules() if isinstance(m, nn.Conv2d)):
        assert conv.bias is None
        expected = sqrt(2 / (conv.out_channels * conv.kernel_size[0] ** 2))
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.05)


def test_convnet_needs_eight_pixels() -> None:
    with pytest.raises(ValueError, match=r"shape is \(3, 7, 32\) but convnet halves an image three times"):
        ConvNet((3, 7, 32))


def test_madry_cnn_matches_the_mnist_challenge() -> None:
    net = MadryCNN((1, 28, 28))
    convolutions = 25 * (1 * 32 + 32 * 64) + 32 + 64
    assert count(net) == convolutions + 3136 * 1024 + 1024 == 3_264_384
    expected = [("Conv2d", (32, 28, 28)), ("ReLU", (32, 28, 28)), ("MaxPool2d", (32, 14, 14))]
    expected += [("Conv2d", (64, 14, 14)), ("ReLU", (64, 14, 14)), ("MaxPool2d", (64, 7, 7))]
    expected += [("Flatten", (3136,)), ("Linear", (1024,)), ("ReLU", (1024,))]
    assert layers_run(net, torch.rand(2, 1, 28, 28)) == expected


def test_madry_cnn_is_initialized_as_in_the_authors_code() -> None:
    net = MadryCNN((1, 28, 28), width=64)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.1).all()
        else:
            assert parameter.abs().max() <= 0.2
    # truncation at two standard deviations reduces the standard deviation to 0.880 of it
    assert net.layers[7].weight.std().item() == pytest.approx(0.0880, rel=0.02)


@pytest.mark.parametrize("make", [ConvNet, MadryCNN])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(make: type[nn.Module], name: str) -> None:
    net = make((1, 8, 8), width=6, activation=name)
    used = [m for m in net.modules() if isinstance(m, tuple(ACTIVATIONS.values()))]
    assert [type(m) for m in used] == [ACTIVATIONS[name]] * {ConvNet: 4, MadryCNN: 3}[make]
    assert all(m.negative_slope == 0.1 for m in used if isinstance(m, nn.LeakyReLU))
    for mode in (True, False):
        features = net.train(mode)(torch.rand(2, 1, 8, 8))
        assert features.shape == (2, 6)
        assert features.isfinite().all()


def test_unknown_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="activation is 'gelu' but must be one of relu, leaky_relu, softplus"):
        ConvNet((1, 8, 8), activation="gelu")
