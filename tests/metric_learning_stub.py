"""A stand-in for pytorch-metric-learning, which is an extra: its shape, not its losses."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn


class Proxies(nn.Module):
    """A loss with parameters."""

    def __init__(self, num_classes: int, embedding_size: int, double: bool = False, power: float = 2.0) -> None:
        super().__init__()
        self.power = power  # as the library does, without a look at it
        drawn = torch.randn(num_classes, embedding_size)
        self.proxies = nn.Parameter(drawn.double() if double else drawn)

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Tensor | None = None) -> Tensor:
        away = (embeddings - self.proxies[labels]).abs().pow(self.power).sum(1)
        return (away if indices_tuple is None else away[indices_tuple]).mean()


class BaseProxies(nn.Module):
    """What losses are made of; no loss itself."""


class ProxiesWrapper(nn.Module):
    """A loss that needs another one."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()


class First(nn.Module):
    """A miner that takes the first samples."""

    def __init__(self, many: int = 2) -> None:
        super().__init__()
        self.many = many

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return torch.arange(self.many)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("pytorch_metric_learning")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    for part, members in (("losses", (Proxies, BaseProxies, ProxiesWrapper)), ("miners", (First,))):
        module = ModuleType(f"{package.__name__}.{part}")
        for member in members:
            setattr(module, member.__name__, member)
        module.torch = SimpleNamespace()  # type: ignore[attr-defined]  # modules hold more than classes
        monkeypatch.setitem(sys.modules, module.__name__, module)
