"""What the attack tests share: the members of the folder, models to attack, and a wrapper that counts."""

import dataclasses
import inspect
import pkgutil
from importlib import import_module

import torch
from torch import Tensor, nn

from holdfast import attacks
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Attack, Cost, Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

MEMBERS = [module.name for module in pkgutil.iter_modules(attacks.__path__) if not module.name.startswith("_")]
RANDOM = {"cw_linf", "feature_norm", "linearity", "noise", "pgd", "transfer"}  # the others must not draw
EPS = {"linf": 0.1, "l2": 0.4, "l1": 1.0, "l0": 2.0}


def member(name: str) -> type[Attack]:
    """The one public class of attacks/<name>.py."""
    module = import_module(f"{attacks.__name__}.{name}")
    public = (it for key, it in vars(module).items() if not key.startswith("_"))
    (found,) = (it for it in public if inspect.isclass(it) and it.__module__ == module.__name__)
    return found


def build(name: str, threat: Threat, source: nn.Module | None = None) -> Attack:
    """The attack as it comes, only with fewer steps; transfer crafts on ``source``."""
    made = member(name)
    fields = {field.name for field in dataclasses.fields(made)}
    if "attack" in fields:
        other = {"source": source} if "source" in fields else {}
        return made(attack=PGD(threat=threat, steps=3, keep="last"), **other)
    return made(threat=threat, **({"steps": 3} if "steps" in fields else {}))


class Net(nn.Module):
    """A small convolutional network with everything that has a mode; it can be told to break."""

    def __init__(self, shape: tuple[int, ...] = (2, 4, 4), seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(shape[0], 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.Softplus(),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(4 * shape[1] * shape[2], 3),
            )
            self.body[1].running_mean.uniform_()
            self.calls_left = -1
            with torch.no_grad():  # so that no class is the answer to everything
                self.body[5].bias -= self.eval()(torch.rand(200, *shape)).mean(0)
            self.train()

    def forward(self, x: Tensor) -> Tensor:
        if self.calls_left == 0:
            raise RuntimeError("the model broke")
        self.calls_left -= 1
        logits: Tensor = self.body(8 * (x - 0.5))
        return logits


class Affine(nn.Module):
    """f(x) = Wx + b: everything about it is known."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Counted(nn.Module):
    """Counts the samples that pass forwards and backwards, and notes the size of every batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.cost, self.sizes = module, Cost(), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        self.cost += Cost(forwards=len(x))
        if x.requires_grad:
            x.register_hook(self._back)
        logits: Tensor = self.module(x)
        return logits

    def _back(self, grad: Tensor) -> None:
        self.cost += Cost(backwards=len(grad))


def samples(n: int, rng: Rng, model: nn.Module, shape: tuple[int, ...] = (2, 4, 4)) -> tuple[Tensor, Rows]:
    """Inputs in [0, 1] in float64, labelled as the model labels them but for the first; indices are no positions."""
    x = (1.2 * rng.fork("x").uniform(torch.empty(n, *shape, dtype=torch.float64)) - 0.1).clamp(0, 1)
    with torch.no_grad():
        modes = [module.training for module in model.modules()]
        y = model.eval()(x).argmax(1)
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
    y[:1] = (y[:1] + 1) % 3
    return x, Rows(y, 7 * torch.arange(n).flip(0) + 100)
