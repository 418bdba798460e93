"""The tables [metrics], [certificates] and [certify]: metrics for nearest neighbors, and what is certified how."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from inspect import signature
from math import inf
from typing import Any, cast

from torch import nn

from holdfast import members
from holdfast.contracts import Certifier
from holdfast.members import unknown
from holdfast.recipes import kinds
from holdfast.recipes.build import Table, build, member, scalar, section, table_of
from holdfast.recipes.tables.attack import entry_table

BOUND = ("model", "points", "labels", "matrix")  # fields of certifiers that recipes cannot set: the run gives them
_SET_BY_RUN = ("random_state", "progress", "device")  # parameters of learners that recipes cannot set


@dataclass(frozen=True, kw_only=True)
class CertifyConfig:
    """What is certified: ``samples`` test samples (None: all). Tables show the robust error at ``radii``.

    The rest is for nearest neighbors: each number of neighbors in ``k``; ``near`` limits the points of the predicted
    class that the bound for several votes considers (None: all), and ``box`` bounds adversarial examples (None:
    unbounded). ``fit`` training samples, evenly spaced, are those that metrics are fitted on (None: all); neighbors are
    searched among all of them. Each stored part holds ``shard`` samples.
    """

    samples: int | None = 1000
    k: tuple[int, ...] = (1,)
    radii: tuple[float, ...]
    near: int | None = None
    fit: int | None = None
    box: tuple[float, float] | None = None
    shard: int = 100

    def __post_init__(self) -> None:
        if not self.radii or not all(0 <= radius < inf for radius in self.radii):
            raise ValueError(f"radii is {list(self.radii)} but robust error is asked at finite radii of zero or more")
        if not self.k or not all(k > 0 and k % 2 for k in self.k) or len(set(self.k)) < len(self.k):
            raise ValueError(f"k is {list(self.k)} but must be different odd numbers, so that a majority is one")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples is {self.samples} but at least 1 is needed")
        if self.fit is not None and self.fit < 2:
            raise ValueError(f"fit is {self.fit} but a metric is fitted on at least 2 samples; leave it out for all")
        if self.shard < 1:
            raise ValueError(f"shard is {self.shard} but a part holds at least 1 sample")


@dataclass(frozen=True, kw_only=True)
class MetricConfig:
    """One metric: the name of a learner and its settings."""

    learner: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> type:
        """The class of the learner."""
        return learners()[self.learner]

    @property
    def seeded(self) -> bool:
        """True if the learner uses random numbers; otherwise it is fitted once for all seeds."""
        return "random_state" in signature(self.kind).parameters

    def make(self, seed: int, device: str, progress: Callable[[int, float], None]) -> Any:
        """The unfitted learner."""
        cls = self.kind
        known = signature(cls).parameters
        given = {"random_state": seed, "progress": progress, "device": device}
        return cls(**self.settings, **{name: value for name, value in given.items() if name in known})

    def table(self) -> dict[str, Any]:
        """The metric as a recipe writes it."""
        return {"learner": self.learner, **self.settings}


def read_metric(name: str, value: Any) -> MetricConfig:
    """A metric from its table, or from the name of its learner."""
    where = f"metrics.{name}"
    table = section({"learner": value} if isinstance(value, str) else value, where)
    learner = str(table.pop("learner", name.lower()))
    if learner not in learners():
        raise ValueError(f"{where}: {unknown(f'learner {learner!r}', learner, learners())}")
    known = signature(learners()[learner], eval_str=True).parameters
    settings = {key: setting.annotation for key, setting in known.items() if key not in _SET_BY_RUN}
    for key in table:
        if key not in settings:
            raise ValueError(unknown(f"key {key!r} in {where}", key, settings))
    values = {key: scalar(settings[key], item, f"{where}.{key}") for key, item in table.items()}
    return MetricConfig(learner=learner, settings=values)


@cache
def learners() -> Mapping[str, type]:
    """The learners that learn a metric, by file name."""
    folder = import_module("holdfast.learners")  # imports scikit-learn, which would slow down --help
    files = {name: members.classes(folder, name) for name in members.names(folder)}
    return {name: cls for name, classes in files.items() for cls in classes if hasattr(cls, "transform")}


def shared_samples(recipe: Table) -> Table:
    """A recipe whose networks are certified on the samples they are attacked on, where it says how many only once."""
    tables = {key: recipe.get(key) or {} for key in ("evaluate", "certify")}
    if recipe.get("certificates") is None or not all(isinstance(table, Mapping) for table in tables.values()):
        return recipe
    given = [table["samples"] for table in tables.values() if "samples" in table]
    return {**recipe, **{key: {"samples": (given or [None])[0], **table} for key, table in tables.items()}}


def read_certifier(name: str, value: Any) -> Certifier:
    """A certifier of networks from its table, or from its name; :func:`bind` gives it its network."""
    where = f"certificates.{name}"
    table = entry_table(name, value)
    cls = member("certifier", table.pop("name"), where)
    if "model" not in [f.name for f in fields(cls)]:
        raise ValueError(f"{where}: {cls.__name__} does not certify networks; use [metrics] for nearest neighbors")
    return cast(Certifier, build(cls, table, where, {"model": nn.Identity()}))


def bind(certifier: Certifier, model: nn.Module, **given: Any) -> Certifier:
    """The certifier of a network, with the settings of the recipe and others of :data:`BOUND`."""
    return cast(Certifier, replace(cast(Any, certifier), model=model, **given))


def has_gallery(certifier: Certifier) -> bool:
    """True if the certifier compares with training samples."""
    return "points" in [f.name for f in fields(cast(Any, certifier))]


def certifier_table(certifier: Certifier) -> dict[str, Any]:
    """A certifier of networks as a recipe writes it: without its network and its gallery."""
    settings = [f.name for f in fields(cast(Any, certifier)) if f.init and f.name not in BOUND]
    name = kinds.name_of(certifier)
    return {"name": name, **{key: table_of(getattr(certifier, key)) for key in settings}}


def check_certificates(
    names: Iterable[str], certify: CertifyConfig, samples: int | None, taken: Container[str]
) -> None:
    """Refuse what the records of a network cannot hold: certificates of other samples, or named like an attack."""
    if certify.samples != samples:
        raise ValueError(
            f"certify.samples is {certify.samples or 'all'} and evaluate.samples {samples or 'all'} but networks are "
            "certified on the samples they are attacked on; give both the same number"
        )
    for name in names:
        if name in taken:
            raise ValueError(f"certificates.{name} has the name of another measurement of networks; rename it")
