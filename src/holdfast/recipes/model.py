"""The model of a recipe: encoder, head, normalization."""

import inspect
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

import torch
from torch import nn

from holdfast.recipes import kinds
from holdfast.recipes.build import build, member, section


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head and its options (None: the default of the head)."""

    name: str = "linear"
    scale: float | None = None
    margin: float | None = None
    feature_norm: bool | None = None
    weight_norm: str | None = None

    def __post_init__(self) -> None:
        with torch.device("meta"):  # builds the head only to check its options; no memory, no random numbers
            self.make(1, 1)

    def make(self, width: int, classes: int) -> nn.Module:
        head = kinds.member("head", self.name)
        known = inspect.signature(head).parameters
        names = ("scale", "margin", "feature_norm", "weight_norm")
        options = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name in options:
            if name not in known:
                raise ValueError(f"head {self.name!r} has no {name}; leave it out")
        return cast(nn.Module, head(width, classes, **options))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder and its options (None: the default of the encoder), the head, and the normalization in the model.

    ``mean`` and ``std`` normalize each channel, ``per_image`` each image by its mean and deviation (Madry, TLA).
    """

    encoder: str
    width: int | None = None
    depth: int | None = None
    channels: int | None = None
    form: str | None = None
    activation: str | None = None
    stem_stride: int | None = None
    extra_blocks: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    per_image: bool = False
    head: HeadConfig = HeadConfig()

    @property
    def options(self) -> dict[str, int | str]:
        """The encoder's options that are set."""
        names = ("width", "depth", "channels", "form", "activation", "stem_stride", "extra_blocks")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __post_init__(self) -> None:
        if self.per_image and self.mean is not None:
            raise ValueError("per_image and mean are two normalizations; choose one")
        for name in ("width", "depth", "channels"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name} is {size} but must be at least 1")
        check_normalization(self.mean, self.std)


@dataclass(frozen=True, kw_only=True)
class OwnModelConfig:
    """A user's own network: where it is imported from, the file of its weights, and the normalization of its inputs.

    ``module`` is ``package.module:callable``, ``timm:NAME``, ``torchvision:NAME`` or ``layout:NAME``.
    """

    module: str
    weights: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_normalization(self.mean, self.std)


def check_normalization(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Refuse means and standard deviations that do not match."""
    means, deviations = mean or (), std or ()
    finite = all(map(isfinite, (*means, *deviations)))
    if len(means) != len(deviations) or not finite or not all(value > 0 for value in deviations):
        raise ValueError(f"mean is {mean} and std {std} but both need one number per channel, std above 0")


def read_model(value: Any, where: str) -> ModelConfig:
    """A model from its table; ``head = "hypersphere"`` is short for ``head = {name = "hypersphere"}``."""
    table = section(value, where)
    if isinstance(table.get("head"), str):
        table["head"] = {"name": table["head"]}
    config = cast(ModelConfig, build(ModelConfig, table, where))
    member("encoder", config.encoder, f"{where}.encoder")
    return config
