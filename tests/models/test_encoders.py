"""Every encoder returns features of its width; numbers of parameters are those of the papers."""

import inspect
import pkgutil
from importlib import import_module
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from holdfast.models import encoders
from holdfast.models.encoders.lenet import LeNet
from holdfast.models.encoders.mlp import MLP
from holdfast.models.encoders.tiny import Tiny

MEMBERS = [module.name for module in pkgutil.iter_modules(encoders.__path__) if not module.name.startswith("_")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)  # weights are initialized by torch's global generator


def encoder(name: str) -> type[nn.Module]:
    module = import_module(f"{encoders.__name__}.{name}")
    public = {key: it for key, it in vars(module).items() if not key.startswith("_")}
    (found,) = (it for it in public.values() if inspect.isclass(it) and it.__module__ == module.__name__)
    assert issubclass(found, nn.Module)
    return found


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_every_encoder_of_the_recipes_exists() -> None:
    assert {"mlp", "lenet", "tiny"} <= set(MEMBERS)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 11)])
def test_every_encoder_gives_features_of_its_width(name: str, shape: tuple[int, ...]) -> None:
    made = encoder(name)
    assert made.__name__.lower() == name.replace("_", "")
    assert made.__doc__
    net = made(shape, width=12)
    assert net.width == 12
    for mode in (True, False):
        features = net.train(mode)(torch.rand(4, *shape))
        assert features.shape == (4, 12)
        assert (features >= 0).all()  # features follow the last activation
        assert features.std() > 0
    assert net(torch.rand(1, *shape)).shape == (1, 12)


def test_mlp_matches_the_rebuttal() -> None:
    net = MLP((1, 28, 28))
    widths = [784, 1024, 1024, 1024]
    assert [(m.in_features, m.out_features) for m in net.modules() if isinstance(m, nn.Linear)] == list(
        pairwise(widths)
    )
    assert sum(isinstance(m, nn.BatchNorm1d) for m in net.modules()) == 3
    linear, norm = 784 * 1024 + 1024 + 2 * (1024 * 1024 + 1024), 3 * 2 * 1024
    assert count(net) == linear + norm == 2_909_184
    assert count(MLP((1, 8, 8), width=16, depth=2)) == 64 * 16 + 16 + 16 * 16 + 16 + 2 * 2 * 16


def test_lenet_matches_table_5() -> None:
    net = LeNet((1, 28, 28))
    convolutions = 9 * (1 * 32 + 32 * 64 + 64 * 128 + 128 * 256) + 32 + 64 + 128 + 256
    hidden = 12544 * 1024 + 1024
    norms = 2 * (32 + 64 + 128 + 256 + 1024)
    assert count(net) == convolutions + hidden + norms == 13_236_928
    narrow = 9 * (3 * 2 + 2 * 4 + 4 * 8 + 8 * 16) + 2 + 4 + 8 + 16 + 2 * (2 + 4 + 8 + 16)
    assert count(LeNet((3, 8, 8), width=5, channels=2)) == narrow + 16 * 4 * 5 + 5 + 2 * 5


def test_lenet_layers_are_in_the_order_of_table_5() -> None:
    sizes: list[tuple[str, tuple[int, ...]]] = []
    net = LeNet((1, 28, 28)).eval()

    def note(module: nn.Module, _: object, out: Tensor) -> None:
        sizes.append((type(module).__name__, tuple(out.shape[1:])))

    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(note)
    net(torch.rand(2, 1, 28, 28))
    expected: list[tuple[str, tuple[int, ...]]] = []
    for channels, size, pooled in ((32, 28, False), (64, 28, True), (128, 14, False), (256, 14, True)):
        expected += [(kind, (channels, size, size)) for kind in ("Conv2d", "BatchNorm2d", "ReLU")]
        expected += [("MaxPool2d", (channels, size // 2, size // 2))] if pooled else []
    expected += [("Flatten", (12544,)), *[(kind, (1024,)) for kind in ("Linear", "BatchNorm1d", "ReLU")]]
    assert sizes == expected


def test_tiny_has_few_parameters() -> None:
    convolutions = 9 * (1 * 16 + 16 * 32) + 16 + 32
    assert count(Tiny((1, 8, 8))) == convolutions + (32 * 4 * 4 * 64 + 64) + 2 * (16 + 32 + 64) == 37_856
