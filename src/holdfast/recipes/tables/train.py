"""How a model is trained: the [train] table of a recipe."""

from dataclasses import dataclass, field
from math import cos, inf, pi
from typing import Literal

from holdfast.data.augment import Augment


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer. Weight decay applies to kernels only, not to biases and batch norm, as in the reference codes."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.9  # sgd only
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.lr < inf:
            raise ValueError(f"lr is {self.lr} but a learning rate is a finite number of zero or more")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum} but it is a share in [0, 1) of the last step")
        if not 0 <= self.weight_decay < inf:
            raise ValueError(f"weight_decay is {self.weight_decay} but it is a finite number of zero or more")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate schedule, updated at every step.

    ``constant``; ``step``, piecewise constant: multiplied by ``gamma`` at each epoch of ``at``; ``cosine`` to zero;
    ``one_cycle`` (Smith and Topin 2018): from 1/25 of the optimizer's rate up to it over the share ``warmup`` of
    training, then down to nearly zero, both along cosines. Momentum does not change.
    """

    name: Literal["constant", "step", "cosine", "one_cycle"] = "constant"
    at: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.warmup < 1:
            raise ValueError(f"warmup is {self.warmup} but it is the share of training in (0, 1) before the peak")
        if not 0 < self.gamma < inf:
            raise ValueError(f"gamma is {self.gamma} but the learning rate is multiplied by it: use one above zero")
        if not all(0 <= epoch < inf for epoch in self.at):
            raise ValueError(f"at is {list(self.at)} but it names epochs, numbers of zero or more")

    def factor(self, epoch: float, epochs: int) -> float:
        """The factor of the learning rate at a (fractional) epoch; ``one_cycle`` uses torch's scheduler instead."""
        if self.name == "step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.at)
        if self.name == "cosine":
            return 0.5 * (1 + cos(pi * min(1.0, epoch / epochs)))
        return 1.0


@dataclass(frozen=True, kw_only=True)
class EMAConfig:
    """Exponential moving average of the weights over steps (Polyak and Juditsky 1992), used in place of the weights.

    Running statistics of batch norm are averaged as well.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"decay is {self.decay} but it is the share of the average that stays, in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class SWAConfig:
    """Mean of the weights at the end of every epoch after the share ``start`` of training (SWA, Izmailov et al. 2018).

    Running statistics of batch norm are recomputed for the mean in one pass over the epoch's clean images. Epochs
    before ``start`` are validated with their weights but are never selected as the best.
    """

    start: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise ValueError(f"start is {self.start} but it is the share of training before the mean, in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and with what a model is trained."""

    epochs: int
    batch: int = 50
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: Augment = field(default_factory=Augment)  # applied to the batch, its positives and its pool
    select: Literal["robust", "clean"] = "robust"  # the validation accuracy that selects the best epoch
    init_from: str | None = None  # weights to start from: a method of this study, or a .safetensors file
    validate_samples: int = 1000
    clip_norm: float | None = None  # maximum norm of the gradient of all trained parameters
    ema: EMAConfig | None = None
    swa: SWAConfig | None = None
    patience: int | None = None  # stop after this many epochs without a better one, as measured by select

    precision: Literal["float32", "bf16-mixed"] = "float32"  # of training passes

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "validate_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)} but must be at least 1")
        if self.clip_norm is not None and not 0 < self.clip_norm < inf:
            raise ValueError(f"clip_norm is {self.clip_norm} but the longest gradient allowed is a number above 0")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience} but training waits for a better epoch at least 1 epoch")
        if self.ema is not None and self.swa is not None:
            raise ValueError("ema and swa are both given but weights are averaged in one way; leave one of them out")

    @property
    def skipped_epochs(self) -> int:
        """The number of epochs before the first that can be selected as the best."""
        return 0 if self.swa is None else int(self.swa.start * self.epochs + 1e-9)  # 0.29 of 100 is 28.99... in floats
