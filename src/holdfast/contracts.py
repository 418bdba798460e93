"""The nouns and protocols that every part of holdfast shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.rng import Rng

if TYPE_CHECKING:
    from holdfast.geometry import Threat


@dataclass(frozen=True)
class Batch:
    """Samples with their labels and their positions in the data set; x is in [0, 1].

    ``positive`` holds another sample of the same class for each row and ``pool`` samples to search for negatives;
    both are filled only for methods whose ``needs`` ask for them.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    positive: Tensor | None = None
    pool: Batch | None = None

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, given: Mapping[str, Tensor] | None = None) -> Rows:
        """The labels and positions of the samples, with whatever else a loss needs for each of them."""
        return Rows(self.y, self.index, given or {})


class Outputs(NamedTuple):
    """What one forward pass gives: the input it was given, its features (b, d) and its logits (b, classes)."""

    x: Tensor
    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Rows:
    """What a loss knows of each sample: the label, its position in the data set, and whatever else was given.

    Everything is indexed together, so samples can leave the batch: a loss never closes over a batch.
    """

    y: Tensor
    index: Tensor
    given: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))

    @staticmethod
    def of(y: Tensor | Rows) -> Rows:
        """Labels alone become rows indexed by their position."""
        return y if isinstance(y, Rows) else Rows(y, torch.arange(len(y), device=y.device))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.given:
            known = ", ".join(sorted(self.given)) or "nothing"
            raise KeyError(f"this loss needs {name!r} for every sample but the rows were given {known}")
        return self.given[name]

    def take(self, which: Tensor) -> Rows:
        """The rows selected by a mask or by positions."""
        return Rows(self.y[which], self.index[which], {name: value[which] for name, value in self.given.items()})

    def put(self, where: Tensor, other: Rows) -> Rows:
        """Rows with others in these positions."""
        given = {name: value.index_copy(0, where, other.given[name]) for name, value in self.given.items()}
        return Rows(self.y.index_copy(0, where, other.y), self.index.index_copy(0, where, other.index), given)


@dataclass(frozen=True)
class Needs:
    """What a method wants beside the batch: a positive per sample, and a pool of this many samples."""

    positive: bool = False
    pool: int = 0


@dataclass(frozen=True)
class Cost:
    """Passes through the model, counted in samples."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards)


@dataclass(frozen=True)
class Terms:
    """What a training method asks to minimise, the scalars it is made of, for the log, and the passes it took.

    ``seen`` holds the training passes over the batch, the adversarial one last where there is one: a metric term is
    added to their features, without passes of its own.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    cost: Cost = Cost()
    seen: tuple[Outputs, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """Per sample: the certified label (-1: abstains), the radius no attack can enter (0 there), and the length of the
    shortest verified attack (inf where none is known)."""

    label: Tensor
    radius: Tensor
    upper: Tensor


Loss = Callable[[Outputs, Rows], Tensor]
"""(b,) numbers, never reduced; larger is worse for the model. Attacks climb it, methods descend it."""

Watch = Callable[[Rows, Tensor, Tensor, Cost], None]
"""Called with (rows, x_adv, loss, cost) at every point where an attack evaluates the model."""


class Meter:
    """A watch that adds up the cost."""

    def __init__(self) -> None:
        self.cost = Cost()

    def __call__(self, rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        """Called by the attack at every evaluation of the model."""
        self.cost = self.cost + cost


@runtime_checkable
class Model(Protocol):
    """A classifier with its representation open: ``outputs`` gives features and logits of one forward pass."""

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs: ...
    def __call__(self, x: Tensor) -> Tensor: ...


class Norm(Protocol):
    """A way to measure perturbations; see :mod:`holdfast.geometry`."""

    @property
    def name(self) -> str: ...
    def length(self, d: Tensor) -> Tensor: ...
    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor: ...
    def steepest(self, grad: Tensor) -> Tensor: ...
    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor: ...


class Attack(Protocol):
    """``attack(model, x, y, rng=rng)`` gives adversarial inputs; ``attack.at(eps)`` is the same attack at another eps.

    ``y`` holds labels, or :class:`Rows` when the loss needs more per sample or the samples have names of their own.
    """

    @property
    def threat(self) -> Threat: ...
    def at(self, eps: float) -> Attack: ...
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor: ...


class Method(Protocol):
    """A way to train: a loss over (model, batch). With state or parameters of its own it is an ``nn.Module``."""

    @property
    def needs(self) -> Needs: ...
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms: ...


class Certifier(Protocol):
    """Certified radii for a batch; the subject (network, smoothed network, K-NN) is bound at construction."""

    @property
    def norm(self) -> Norm: ...
    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate: ...
