"""The data types and protocols that every part of holdfast shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.rng import Rng
from holdfast.settings import check_tensors

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

    def __post_init__(self) -> None:
        check_tensors(
            x=self.x, y=self.y, index=self.index, **{} if self.positive is None else {"positive": self.positive}
        )
        if not len(self.x) == len(self.y) == len(self.index):
            raise ValueError(
                f"a batch has {len(self.x)} x, {len(self.y)} y and {len(self.index)} index but one of each is needed "
                "for every sample"
            )
        if self.pool is not None and not isinstance(self.pool, Batch):
            raise ValueError(
                f"pool is a {type(self.pool).__name__} but must be a Batch: Batch(x, y, index) of the samples among "
                "which negatives are searched"
            )

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, given: Mapping[str, Tensor] | None = None) -> Rows:
        """The labels and positions of the samples, with whatever else a loss needs for each of them."""
        return Rows(self.y, self.index, given or {})


class Outputs(NamedTuple):
    """The result of one forward pass: the input x, the features (b, d) and the logits (b, classes)."""

    x: Tensor
    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Rows:
    """What a loss reads per sample: the label, the position in the data set, and any further tensors by name.

    All of it is indexed together, so that samples can leave a batch early; a loss must not close over a batch.
    """

    y: Tensor
    index: Tensor
    given: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_tensors(y=self.y, index=self.index)

    @staticmethod
    def of(y: Tensor | Rows) -> Rows:
        """Returns rows as they are; labels become rows whose index is their position."""
        if isinstance(y, Rows):
            return y
        check_tensors(y=y)
        return Rows(y, torch.arange(len(y), device=y.device))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.given:
            known = ", ".join(sorted(self.given)) or "nothing"
            raise KeyError(f"this loss needs {name!r} for every sample but the rows were given {known}")
        return self.given[name]

    def reached(self, label: Tensor, targeted: bool) -> Tensor:
        """Returns (b,) whether predicted labels are what the attack wants: any wrong class, or the ``target``."""
        return label == self["target"] if targeted else label != self.y

    def take(self, which: Tensor) -> Rows:
        """Selects rows by a mask or by positions."""
        return Rows(self.y[which], self.index[which], {name: value[which] for name, value in self.given.items()})

    def put(self, where: Tensor, other: Rows) -> Rows:
        """Returns a copy with the rows at these positions replaced by ``other``."""
        given = {name: value.index_copy(0, where, other.given[name]) for name, value in self.given.items()}
        return Rows(self.y.index_copy(0, where, other.y), self.index.index_copy(0, where, other.index), given)

    def join(self, other: Rows) -> Rows:
        """Returns these rows followed by ``other``."""
        given = {name: torch.cat([value, other.given[name]]) for name, value in self.given.items()}
        return Rows(torch.cat([self.y, other.y]), torch.cat([self.index, other.index]), given)


@dataclass(frozen=True)
class Needs:
    """What a method needs beside the batch: a positive per sample, and a pool of ``pool`` samples.

    ``features`` is True if it compares features of the model and not only its logits.
    """

    positive: bool = False
    pool: int = 0
    features: bool = False


@dataclass(frozen=True)
class Cost:
    """Forward and backward passes, counted in samples."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards)


@dataclass(frozen=True)
class Terms:
    """The loss of a training method on a batch: the scalar to minimize, its parts for the log, and the cost.

    ``seen`` holds the outputs of the training passes over the batch, the adversarial pass last. A metric term is
    computed from their features, so it needs no further passes.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    cost: Cost = Cost()
    seen: tuple[Outputs, ...] = ()

    def __post_init__(self) -> None:
        check_tensors(total=self.total)
        if not isinstance(self.parts, Mapping):
            raise ValueError(f"parts is a {type(self.parts).__name__} but must map names to tensors, for the log")


@dataclass(frozen=True)
class Certificate:
    """Per sample: the certified label (-1 if it abstains), the certified radius (0 if it abstains), and the length of
    the shortest verified perturbation that changes the label (inf if none is known)."""

    label: Tensor
    radius: Tensor
    upper: Tensor


Loss = Callable[[Outputs, Rows], Tensor]
"""One number per sample, (b,), never reduced; larger is worse for the model. Attacks maximize, methods minimize it."""

Watch = Callable[[Rows, Tensor, Tensor, Cost], None]
"""Called with (rows, x_adv, loss, cost) each time an attack evaluates the model."""

Predictor = Callable[[Tensor], Tensor]
"""Any callable from inputs to scores (b, classes) or integer labels (b,): a module that classifies, a function around a
scikit-learn classifier, the ``predict`` of nearest neighbors, a remote service."""

Keep = Literal["fooled", "last", "worst", "closest"]
"""Which iterate an attack returns. ``fooled``: the first one that is misclassified, at which the attack stops;
``last``: the last one; ``worst``: a misclassified one if there is any, among those the one with the largest loss;
``closest``: the misclassified one with the shortest perturbation."""

Start = Literal["clean", "random", "near"]
"""Where an attack starts: at x; at a ``random`` point of the ball, uniform in linf and in other norms a uniform share
of the way from x to such a point; or (``near``) at x + 0.001·N(0, I), as in the code of TRADES."""


class Meter:
    """A :data:`Watch` that sums the cost."""

    def __init__(self) -> None:
        self.cost = Cost()

    def __call__(self, rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        self.cost = self.cost + cost


@runtime_checkable
class Model(Protocol):
    """A classifier that exposes its features: ``outputs`` returns features and logits of one forward pass."""

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs: ...
    def __call__(self, x: Tensor) -> Tensor: ...


class Norm(Protocol):
    """A norm of perturbations; see :mod:`holdfast.norms`."""

    @property
    def name(self) -> str: ...
    def length(self, d: Tensor) -> Tensor: ...
    def project(self, d: Tensor, radius: Tensor, low: Tensor, high: Tensor) -> Tensor: ...
    def steepest(self, grad: Tensor) -> Tensor: ...
    def sample(self, like: Tensor, radius: Tensor, rng: Rng) -> Tensor: ...


@runtime_checkable
class Attack(Protocol):
    """``attack(model, x, y, rng=rng)`` returns adversarial inputs for x.

    ``y`` holds labels, or :class:`Rows` when the loss reads more per sample or the samples are keyed by an index.
    ``attacks/_attack.py`` implements all members but the call.
    """

    @property
    def threat(self) -> Threat:
        """The perturbations that are allowed."""

    @property
    def keep(self) -> Keep:
        """Which iterate is returned; training and transfer refuse attacks that stay at the decision boundary."""

    @property
    def minimal(self) -> bool:
        """True if the attack searches for the shortest perturbation, so that one run covers every eps up to its own."""

    @property
    def black_box(self) -> bool:
        """True if the attack needs only outputs of the model under test, so that it runs on any :data:`Predictor`."""

    def at(self, eps: float) -> Attack:
        """The same attack at another eps."""

    def with_loss(self, loss: Loss, start: Start) -> Attack:
        """The same attack on another loss, from another start; raises ValueError if it has no choice of both."""

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One attack of a cascade, and which of the samples that no earlier stage fooled it is run on.

    It is run on the share ``share`` of them whose largest logit difference so far is largest, that is on those that
    came nearest to being misclassified. With ``if_fooled`` it is left out unless the last stage that was run fooled
    more than this share of the samples it was run on.
    """

    name: str
    attack: Attack
    share: float = 1.0
    if_fooled: float | None = None


@runtime_checkable
class Cascade(Attack, Protocol):
    """An attack that runs others in turn, each on samples that are still classified correctly.

    The evaluator stores every stage by itself and ranks samples after all of them have finished a stage, so that the
    result does not depend on how they are divided.
    """

    def stages(self, classes: int) -> Sequence[Stage]:
        """The attacks for a model with this number of classes, in order."""


class Method(Protocol):
    """A training method: a loss over (model, batch). A method with state or parameters is an ``nn.Module``."""

    @property
    def needs(self) -> Needs: ...
    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms: ...


class Certifier(Protocol):
    """Certified radii for a batch; the classifier (network, smoothed network, k-NN) is bound at construction."""

    @property
    def norm(self) -> Norm: ...
    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate: ...
