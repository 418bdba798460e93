"""A metric-learning term for any method."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Method, Needs, Terms
from holdfast.members import unknown
from holdfast.methods._craft import check_settings, checked, training_passes
from holdfast.rng import Rng

Settings = Mapping[str, bool | int | float | str]

_LOSSES = {"loss", "losses", "mat_based_loss"}
# what the library raises for unsuitable settings: it accepts any value and fails where the value is first used
_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(init=False, eq=False, repr=False)
class Metric(nn.Module):
    """Adds ``weight`` times a loss of pytorch-metric-learning (the extra ``metric``) to another method.

    ``loss`` is the name of one of its losses (``ContrastiveLoss``, ``NPairsLoss``, ``MultiSimilarityLoss``,
    ``ProxyAnchorLoss`` ...) and ``settings`` holds its arguments. ``miner`` is the name of one of its miners, which
    select the pairs or triplets that enter the loss (None: all of them), and ``miner_settings`` holds its arguments.
    The loss is computed on the features of all training passes of ``method`` together, clean and adversarial. Its
    parameters, such as proxies, are trained and saved with the model.
    """

    method: Method
    loss: str = "ContrastiveLoss"
    settings: Settings | None = None
    miner: str | None = None
    miner_settings: Settings | None = None
    weight: float = 0.5

    def __init__(  # not generated: nn.Module.__init__ must run before a module is assigned, and ``method`` may be one
        self,
        *,
        method: Method,
        loss: str = "ContrastiveLoss",
        settings: Settings | None = None,
        miner: str | None = None,
        miner_settings: Settings | None = None,
        weight: float = 0.5,
    ) -> None:
        super().__init__()
        self.method, self.weight = method, weight
        self.loss, self.settings = loss, settings
        self.miner, self.miner_settings = miner, miner_settings
        check_settings(self, "weight")
        self.term = _build("losses", loss, settings or {})
        self.mine = None if miner is None else _build("miners", miner, miner_settings or {})

    @property
    def needs(self) -> Needs:
        """What the wrapped method needs, and features."""
        return replace(self.method.needs, features=True)

    @checked
    def forward(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        terms = self.method(model, batch, progress=progress, rng=rng)
        passes = training_passes(terms)
        features = torch.cat([out.features for out in passes])
        self._check_sizes(features.shape[1], passes[-1].logits.shape[1])
        value = self._value(features, batch.y.repeat(len(passes)))
        return Terms(terms.total + self.weight * value, {**terms.parts, "metric": value}, terms.cost, passes)

    def _value(self, features: Tensor, y: Tensor) -> Tensor:
        pairs = None
        if self.miner is not None and self.mine is not None:
            with _settings_in_errors(self.miner, self.miner_settings, "compute"):
                pairs = self.mine(features, y)
        with _settings_in_errors(self.loss, self.settings, "compute"):
            return cast(Tensor, self.term(features, y, pairs))

    def _check_sizes(self, width: int, classes: int) -> None:
        """Refuse proxies of another size than the model's features or classes; most such losses share these names."""
        for name, needed in (("embedding_size", width), ("num_classes", classes)):
            given = (self.settings or {}).get(name, needed)
            if given != needed:
                raise ValueError(f"{self.loss} has {name} = {given} but this model needs {needed}; change its settings")


def _library(part: str, name: str) -> ModuleType:
    try:
        return import_module(f"pytorch_metric_learning.{part}")
    except ImportError as error:
        raise ImportError(
            f"the metric term {name} needs the package pytorch-metric-learning, which is not installed; "
            "run: pip install 'holdfast[metric]'"
        ) from error


def _build(part: str, name: str, settings: Settings) -> nn.Module:
    classes = {key: value for key, value in vars(_library(part, name)).items() if inspect.isclass(value)}
    if name not in classes:
        # neither building blocks, nor what takes another loss as argument, which a recipe cannot express
        usable = [key for key in classes if not (key.startswith("Base") or key.endswith("Mixin"))]
        usable = [key for key in usable if not _LOSSES & inspect.signature(classes[key]).parameters.keys()]
        raise ValueError(unknown(f"name {name!r} among the {part} of pytorch-metric-learning", name, usable))
    with _settings_in_errors(name, settings, "be made"):
        return cast(nn.Module, classes[name](**settings))


@contextmanager
def _settings_in_errors(name: str, settings: Settings | None, doing: str) -> Iterator[None]:
    """Replace an error of the library by one sentence that names the settings."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _ERRORS as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        given = dict(settings or {})
        raise ValueError(f"{name} cannot {doing} with the settings {given} ({reason}); change them") from error
