"""A metric-learning term for any method."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Method, Needs, Terms
from holdfast.methods._craft import check_weight
from holdfast.methods._seen import last_seen
from holdfast.rng import Rng

Settings = Mapping[str, bool | int | float | str]

_TRIPS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(init=False, eq=False, repr=False)
class Metric(nn.Module):
    """Another method plus ``weight`` times a loss of pytorch-metric-learning (the extra ``metric``).

    ``loss`` is the name of one of its losses (``ContrastiveLoss``, ``NPairsLoss``, ``MultiSimilarityLoss``,
    ``ProxyAnchorLoss`` ...) and ``settings`` its arguments; ``miner`` and ``miner_settings`` choose the pairs. The
    loss sees the features of every training pass of the method inside, clean and adversarial together where it has
    both. Parameters of the loss, such as proxies, are trained and saved with the model.
    """

    method: Method
    loss: str = "ContrastiveLoss"
    settings: Settings | None = None
    miner: str | None = None
    miner_settings: Settings | None = None
    weight: float = 0.5

    def __init__(  # written out: the fields can be set only after the module's own __init__, as one may be a module
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
        check_weight("weight", weight)
        self.method, self.weight = method, weight
        self.loss, self.settings = loss, settings
        self.miner, self.miner_settings = miner, miner_settings
        self.term = _made("losses", loss, settings or {})
        self.mine = None if miner is None else _made("miners", miner, miner_settings or {})

    @property
    def needs(self) -> Needs:
        """What the method inside needs."""
        return self.method.needs

    def forward(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        terms = self.method(model, batch, progress=progress, rng=rng)
        last_seen(terms)
        features = torch.cat([out.features for out in terms.seen])
        y = batch.y.repeat(len(terms.seen))
        self._check_sizes(features.shape[1], terms.seen[-1].logits.shape[1])
        value = self._value(features, y)
        return Terms(terms.total + self.weight * value, {**terms.parts, "metric": value}, terms.cost, terms.seen)

    def _value(self, features: Tensor, y: Tensor) -> Tensor:
        pairs = None
        if self.miner is not None and self.mine is not None:
            with _settings_named(self.miner, self.miner_settings, "compute"):
                pairs = self.mine(features, y)
        with _settings_named(self.loss, self.settings, "compute"):
            return cast(Tensor, self.term(features, y, pairs))

    def _check_sizes(self, width: int, classes: int) -> None:
        """Refuse proxies made for other features or classes, by the names that most losses with proxies give them."""
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


def _made(part: str, name: str, settings: Settings) -> nn.Module:
    known = {key: it for key, it in vars(_library(part, name)).items() if inspect.isclass(it)}
    if name not in known:
        usable = [key for key, cls in known.items() if _usable(key, cls)]
        near = ", ".join(get_close_matches(name, usable, n=3)) or ", ".join(sorted(usable))
        raise ValueError(f"pytorch-metric-learning has no {name!r} among its {part}; there is {near}")
    with _settings_named(name, settings, "be made"):
        return cast(nn.Module, known[name](**settings))


def _usable(name: str, cls: type) -> bool:
    """Whether a class is more than a part of others, and needs no other loss, which a recipe cannot write."""
    part = name.startswith("Base") or name.endswith("Mixin")
    return not part and not {"loss", "losses", "mat_based_loss"} & inspect.signature(cls).parameters.keys()


@contextmanager
def _settings_named(name: str, settings: Settings | None, doing: str) -> Iterator[None]:
    """One sentence with the settings in place of the error: the library takes any and trips over them anywhere."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _TRIPS as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        given = dict(settings or {})
        raise ValueError(f"{name} cannot {doing} with the settings {given} ({said}); change them") from error
