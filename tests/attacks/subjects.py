"""What the attack tests share: the attacks of the folder, models to attack, and a wrapper that counts passes."""

import dataclasses

import torch
from torch import Tensor, nn

from holdfast import attacks, members
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Attack, Cost, Rows
from holdfast.geometry import NORMS, Threat
from holdfast.rng import Rng

EPS = {"linf": 0.1, "l2": 0.4, "l1": 1.0, "l0": 2.0}


def member(name: str) -> type[Attack]:
    """The class of attacks/<name>.py."""
    return members.member(attacks, name)


def build(name: str, threat: Threat, source: nn.Module | None = None) -> Attack:
    """The attack with its default settings but three steps or 60 queries; transfer crafts on ``source``."""
    cls = member(name)
    inner = PGD(threat=threat, steps=3, keep="last")
    given = {"threat": threat, "attack": inner, "source": source, "steps": 3, "queries": 60}
    return cls(**{field.name: given[field.name] for field in dataclasses.fields(cls) if field.name in given})


def norms_of(name: str) -> list[str]:
    """The norms in which the attack works; it refuses a threat in another one at construction."""

    def works(norm: str) -> bool:
        try:
            build(name, Threat(NORMS[norm], EPS[norm]), source=nn.Identity())
        except ValueError:
            return False
        return True

    return [norm for norm in NORMS if works(norm)]


MEMBERS = members.names(attacks)
NORMS_OF = {name: norms_of(name) for name in MEMBERS}


class Net(nn.Module):
    """A small network with batch norm and dropout; ``calls_left`` makes it fail after that many forward passes."""

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
            with torch.no_grad():  # center the logits, so that every class is predicted for some inputs
                self.body[5].bias -= self.eval()(torch.rand(200, *shape)).mean(0)
            self.train()

    def forward(self, x: Tensor) -> Tensor:
        if self.calls_left == 0:
            raise RuntimeError("the model broke")
        self.calls_left -= 1
        logits: Tensor = self.body(8 * (x - 0.5))
        return logits


class Affine(nn.Module):
    """f(x) = Wx + b, whose minimal perturbations have a closed form."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Counted(nn.Module):
    """Counts the samples in forward and backward passes, and records the size of every batch."""

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
    """Inputs in [0, 1] in float64 with the predicted labels, except for the first; indices differ from positions."""
    x = (1.2 * rng.fork("x").uniform(torch.empty(n, *shape, dtype=torch.float64)) - 0.1).clamp(0, 1)
    with torch.no_grad():
        modes = [module.training for module in model.modules()]
        y = model.eval()(x).argmax(1)
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
    y[:1] = (y[:1] + 1) % 3
    return x, Rows(y, 7 * torch.arange(n).flip(0) + 100)
