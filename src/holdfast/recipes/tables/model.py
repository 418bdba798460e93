"""The model of a recipe: encoder, head, normalization."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

import torch
from torch import nn

from holdfast.recipes import kinds, source
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

    ``mean`` and ``std`` normalize each channel, ``per_image`` each image by its mean and deviation (Madry, TLA). The
    user's own encoder is named as ``package.module:callable``; ``module`` in place of ``encoder`` is a whole network,
    which returns logits. ``weights`` is the file of their first weights.
    """

    encoder: str | None = None
    module: str | None = None
    weights: str | None = None
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

    @property
    def own(self) -> bool:
        """True if a network or an encoder of the user is imported."""
        return self.module is not None or ":" in str(self.encoder)

    def __post_init__(self) -> None:
        if (self.encoder is None) == (self.module is None):
            raise ValueError("name one of encoder (of features, to which a head is added) and module (a whole network)")
        if self.module is not None and self.head != HeadConfig():
            raise ValueError(
                f"head is {self.head.name!r} but the module {self.module!r} is a whole network with a head of its own; "
                "name an encoder, or put the head into your network"
            )
        if self.encoder is not None and self.encoder.startswith(("timm:", "torchvision:", "layout:")):
            raise ValueError(f"encoder is {self.encoder!r} but that is a whole network; name it as module")
        if self.own and self.options:
            raise ValueError(f"{next(iter(self.options))} is an option of encoders of holdfast; leave it out")
        if self.weights is not None and not self.own:
            raise ValueError("weights are those of your own network; use train.init_from with an encoder of holdfast")
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
    if not config.own:
        member("encoder", config.encoder, f"{where}.encoder")
    return config


def changed_model(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a model with some keys changed.

    A whole network replaces that of ``base``. An encoder of the user has no options, but the head and normalization.
    """
    if changes.get("module") is not None or (changes.get("encoder") is not None and base.get("module") is not None):
        return dict(changes)
    if ":" in str(changes.get("encoder")):
        base = {key: base[key] for key in ("head", "mean", "std", "per_image") if key in base}
    return source.merge(base, changes)
