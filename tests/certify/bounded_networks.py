"""Random small networks of every layer that can be bounded, and points of the regions they are bounded on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.models.classifier import Classifier
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

CLASSES = 3
SHAPE = (2, 6, 6)


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Arithmetic(nn.Module):
    """Constants on both sides of x, and padding."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad((1.5 - x) * 2 / 3 - 0.25, (1, 0, 0, 1))


def _conv(channels: int) -> nn.Module:
    return nn.Conv2d(channels, channels, 3, padding=1)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "conv": _conv,
    "strided": lambda channels: nn.Conv2d(channels, channels, 2, stride=2, bias=False, groups=2),
    "batch_norm": nn.BatchNorm2d,
    "relu": lambda _: nn.ReLU(),
    "leaky": lambda _: nn.LeakyReLU(0.2),
    "softplus": lambda _: nn.Softplus(3),
    "average": lambda _: nn.AvgPool2d(2, 1),
    "adaptive": lambda _: nn.AdaptiveAvgPool2d(3),
    "max": lambda _: nn.MaxPool2d(3, 2, padding=1),
    "ceil": lambda _: nn.MaxPool2d(2, 2, ceil_mode=True),
    "residual": lambda channels: Residual(nn.Sequential(_conv(channels), nn.ReLU(), _conv(channels))),
    "arithmetic": lambda _: Arithmetic(),
    "dropout": lambda _: nn.Dropout(),
}


def network(names: list[str], head: str, rng: Rng) -> nn.Module:
    """A network of these layers with random weights and statistics, in eval mode."""
    layers = [LAYERS[name](SHAPE[0]) for name in names if name in LAYERS]
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, *SHAPE)).shape[1]
    hidden = nn.Sequential(body, nn.Linear(width, 8), nn.ReLU())
    last = Hypersphere(8, CLASSES) if head == "hypersphere" else nn.Linear(8, CLASSES)
    model = Classifier(hidden, last).eval()
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point():
            drawn = rng.fork(name).normal(torch.empty_like(value))
            scale = 1 / max(1, value[0].numel()) ** 0.5 if value.ndim > 1 else 0.3
            value.data = drawn.abs() + 0.5 if name.endswith("running_var") else scale * drawn
    return model


def points(x: Tensor, radius: float, norm: str, rng: Rng, count: int = 40) -> Tensor:
    """Points (count, *x) of the box within the radius of one x: inside, and on the boundary of the region."""
    d = rng.fork("points").normal(torch.empty(count, *x.shape, dtype=x.dtype))
    if norm == "linf":
        d = torch.where(torch.arange(count).reshape(-1, 1, 1, 1) % 2 == 0, d.sign(), d.clamp(-1, 1))
    else:
        d /= torch.linalg.vector_norm(d.flatten(1), dim=1).reshape(-1, 1, 1, 1)
    return (x + radius * (1 - 1e-6) * d).clamp(0, 1)
