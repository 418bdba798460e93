"""A stub attack, tiny networks, samples, and reference losses in numpy and Python loops."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Loss, Method, Rows
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import cross_entropy as climbed
from holdfast.models.classifier import Classifier
from holdfast.rng import Rng

EPS = 0.1


def threat(eps: float = EPS) -> Threat:
    return Threat(LInf(), eps)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Adds +eps, -eps, +eps ... to every input without calling the model; records the eps and rows of each call."""

    threat: Threat
    loss: Loss = climbed
    start: str = "clean"
    seen: list[tuple[float, Rows]] = field(default_factory=list)
    keep = "last"

    def at(self, eps: float) -> "Shift":
        return replace(self, threat=replace(self.threat, eps=eps))

    def with_loss(self, loss: Loss, start: str) -> "Shift":
        return replace(self, loss=loss, start=start)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: object = None) -> Tensor:
        assert isinstance(y, Rows)
        self.seen.append((self.threat.eps, y))
        return shifted(x, self.threat.eps)


def shifted(x: Tensor, eps: float = EPS) -> Tensor:
    sign = 1 - 2 * (torch.arange(x[0].numel(), dtype=x.dtype) % 2)
    return x + eps * sign.reshape(x.shape[1:])


def fixed(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fill(module: nn.Module) -> nn.Module:
    """The module in float64 with fixed weights that do not depend on torch's initialization."""
    module.double()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(fixed(*parameter.shape, seed=i) * 0.8)
    return module


def network() -> Classifier:
    """Linear(4, 3), tanh, Linear(3, 3): smooth, with features of both signs."""
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 3))
    fill(model)
    return model


def batch_norm_network() -> Classifier:
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.Linear(3, 3))
    fill(model)
    return model


def samples(seed: int = 7) -> Batch:
    """Five samples of three classes, a positive for each and a pool of seven; some values are exactly 0 or 1."""
    y, pool_y = torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 1, 2, 2, 0, 1, 1])
    draw = [(fixed(n, 4, seed=seed + i) * 0.3 + 0.5).clamp(0, 1) for i, n in enumerate((5, 5, 7))]
    pool = Batch(draw[2], pool_y, torch.arange(7) + 40)
    return Batch(draw[0], y, torch.tensor([3, 1, 4, 9, 5]), draw[1], pool)


def duplicated(batch: Batch) -> Batch:
    assert batch.positive is not None
    x, y, index, positive = (torch.cat([t, t]) for t in (batch.x, batch.y, batch.index, batch.positive))
    return Batch(x, y, index, positive, batch.pool)


def descend(model: nn.Module, method: Method, parameters: list[Tensor], rng: Rng) -> tuple[float, float]:
    """The decrease of the total after a small gradient step, and the decrease that the gradient predicts."""
    rate = 1e-5
    before = method(model, samples(), progress=0.5, rng=rng).total
    gradients = torch.autograd.grad(before, parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p -= rate * g
    after = method(model, samples(), progress=0.5, rng=rng).total
    return (before - after).item(), rate * sum(g.square().sum().item() for g in gradients)


@dataclass
class Passes:
    """Records every forward pass of a classifier: its inputs, and whether it was in train mode."""

    training: list[bool] = field(default_factory=list)
    x: list[Tensor] = field(default_factory=list)

    def watch(self, model: Classifier) -> "Passes":
        model.encoder.register_forward_pre_hook(self._record)
        return self

    def _record(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.training.append(module.training)
        self.x.append(args[0].detach().clone())


def _dense(layer: nn.Module, x: np.ndarray) -> np.ndarray:
    assert isinstance(layer, nn.Linear)
    return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def embed(model: Classifier, x: Tensor, layer: str | None = None, *, training: bool = True) -> np.ndarray:
    """(b, d) the features of ``network()`` or ``batch_norm_network()`` at a layer."""
    first, second = model.encoder  # type: ignore[misc]
    hidden = _dense(first, x.numpy())
    if layer == "encoder.0":
        return hidden
    if isinstance(second, nn.Tanh):
        features = np.tanh(hidden)
    else:
        mean = hidden.mean(0) if training else np.zeros(3)
        variance = hidden.var(0) if training else np.ones(3)
        weight, bias = second.weight.detach().numpy(), second.bias.detach().numpy()
        features = (hidden - mean) / np.sqrt(variance + 1e-5) * weight + bias
    return _dense(model.head, features) if layer == "logits" else features


def logits(model: Classifier, x: Tensor) -> np.ndarray:
    return embed(model, x, "logits")


def cross_entropy(z: np.ndarray, y: Tensor, smoothing: float = 0.0) -> float:
    """The mean cross entropy over rows."""
    total = 0.0
    for row, label in zip(z, y.tolist(), strict=True):
        log_p = row - np.log(np.exp(row).sum())
        target = [(1 - smoothing) * (k == label) + smoothing / len(row) for k in range(len(row))]
        total -= sum(t * p for t, p in zip(target, log_p, strict=True))
    return total / len(z)


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    return float(sum(a * b for a, b in zip(u, v, strict=True)) / (length(u) * length(v)))


def length(u: np.ndarray) -> float:
    return float(sum(a * a for a in u) ** 0.5)


def distance(u: np.ndarray, v: np.ndarray, signed: bool = False) -> float:
    return 1 - (cosine(u, v) if signed else abs(cosine(u, v)))


def nearest(anchors: np.ndarray, y: Tensor, pool: np.ndarray, pool_y: Tensor, signed: bool = False) -> list[int]:
    """For each anchor, the index of the nearest row of the pool with another label."""
    chosen = []
    for anchor, label in zip(anchors, y.tolist(), strict=True):
        wrong = [j for j, other in enumerate(pool_y.tolist()) if other != label]
        chosen.append(min(wrong, key=lambda j: distance(anchor, pool[j], signed)))
    return chosen


def triplet(a: np.ndarray, p: np.ndarray, n: np.ndarray, margin: float) -> float:
    """The mean over rows of the hinge."""
    rows = zip(a, p, n, strict=True)
    return sum(max(0.0, distance(u, v) - distance(u, w) + margin) for u, v, w in rows) / len(a)


def norm_term(a: np.ndarray, p: np.ndarray, n: np.ndarray, form: str) -> float:
    """The mean over rows of the summed lengths, or of the summed mean squares."""
    if form == "length":
        return sum(length(u) + length(v) + length(w) for u, v, w in zip(a, p, n, strict=True)) / len(a)
    return sum(float((u * u + v * v + w * w).sum()) / len(u) for u, v, w in zip(a, p, n, strict=True)) / len(a)
