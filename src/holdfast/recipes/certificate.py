"""A recipe for certificates: data, metrics to learn, and the radii at which robust error is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from inspect import getmembers, isclass, signature
from math import inf
from pkgutil import iter_modules
from typing import Any, cast

from holdfast.members import unknown
from holdfast.recipes import checks, source
from holdfast.recipes.build import Table, build, scalar, section, table_of
from holdfast.recipes.schema import DataPlan

_OURS = ("random_state", "progress", "device")  # settings of learners that the run decides


@dataclass(frozen=True, kw_only=True)
class CertifyPlan:
    """What is certified: how many test samples (None: all), how many neighbours vote, and where tables are read off."""

    samples: int | None = 1000
    k: tuple[int, ...] = (1,)
    radii: tuple[float, ...]
    near: int | None = None  # own points that the bound of several votes looks at; None: all of them
    box: tuple[float, float] | None = None  # where examples must lie; None: anywhere
    shard: int = 100  # samples between two saved parts

    def __post_init__(self) -> None:
        if not self.radii or not all(0 <= radius < inf for radius in self.radii):
            raise ValueError(f"radii is {list(self.radii)} but robust error is asked at finite radii of zero or more")
        if not self.k or not all(k > 0 and k % 2 for k in self.k) or len(set(self.k)) < len(self.k):
            raise ValueError(f"k is {list(self.k)} but must be different odd numbers, so that a majority is one")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples is {self.samples} but at least 1 is needed")
        if self.shard < 1:
            raise ValueError(f"shard is {self.shard} but a part holds at least 1 sample")


@dataclass(frozen=True, kw_only=True)
class MetricPlan:
    """One metric: a learner by the name of its file, with its settings."""

    learner: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """Whether the learner draws random numbers; if not, it is fitted once for all seeds."""
        return "random_state" in signature(learners()[self.learner]).parameters

    def make(self, seed: int, device: str, progress: Callable[[int, float], None]) -> Any:
        """The learner, not yet fitted."""
        cls = learners()[self.learner]
        known = signature(cls).parameters
        given = {"random_state": seed, "progress": progress, "device": device}
        return cls(**self.settings, **{name: value for name, value in given.items() if name in known})


@dataclass(frozen=True, kw_only=True)
class CertificateRecipe:
    """A study of certificates: one data set, several metrics and seeds, one or more numbers of neighbours."""

    name: str
    title: str
    description: str
    seeds: tuple[int, ...]
    data: DataPlan
    metrics: Mapping[str, MetricPlan]
    certify: CertifyPlan
    threads: int | None = None

    def table(self) -> dict[str, Any]:
        """The resolved recipe, every default written out; :func:`read` takes it back."""
        table = cast(dict[str, Any], table_of(self))
        table["metrics"] = {n: {"learner": m.learner, **m.settings} for n, m in self.metrics.items()}
        return table


def is_certificate(table: Table) -> bool:
    """Whether a recipe asks for certificates rather than for training and attacks."""
    return "certify" in table


def load(name: str, changes: Sequence[str] = ()) -> CertificateRecipe:
    """A recipe for certificates by its name or the path of a .toml file, with ``key=value`` changes applied."""
    return read(source.changed(name, changes), name)


def read(table: Table, where: str = "recipe") -> CertificateRecipe:
    """A recipe for certificates from its table."""
    known = {"name", "title", "description", "seeds", "data", "metrics", "certify", "threads"}
    if not is_certificate(table):
        raise ValueError(f"{where} has no [certify] section, so it is no recipe for certificates; use `holdfast run`")
    for key in table:
        if key not in known:
            raise ValueError(unknown(f"key {key!r} in {where}", key, known))
    for key in ("data", "metrics"):
        if key not in table:
            raise ValueError(f"{where} needs a [{key}] section")
    name = checks.folder_name(str(table.get("name", where)))
    return CertificateRecipe(
        name=name,
        title=str(table.get("title", name)),
        description=str(table.get("description", "")),
        seeds=checks.seeds(table.get("seeds", [0])),
        data=build(DataPlan, table["data"], "data"),
        metrics={n: _metric(n, value) for n, value in checks.named(table["metrics"], "metrics").items()},
        certify=build(CertifyPlan, table["certify"], "certify"),
        threads=checks.threads(scalar(int | None, table.get("threads"), "threads")),
    )


def _metric(name: str, value: Any) -> MetricPlan:
    where = f"metrics.{name}"
    table = section({"learner": value} if isinstance(value, str) else value, where)
    learner = str(table.pop("learner", name.lower()))
    if learner not in learners():
        raise ValueError(f"{where}: {unknown(f'learner {learner!r}', learner, learners())}")
    settings = [key for key in signature(learners()[learner]).parameters if key not in _OURS]
    for key in table:
        if key not in settings:
            raise ValueError(unknown(f"key {key!r} in {where}", key, settings))
    return MetricPlan(learner=learner, settings=table)


@cache
def learners() -> Mapping[str, type]:
    """The learners that give a metric, by the names of their files."""
    folder = import_module("holdfast.learners")  # imports scikit-learn, for which --help must not wait
    found = {}
    for info in iter_modules(folder.__path__):
        module = import_module(f"holdfast.learners.{info.name}")
        for _, cls in getmembers(module, isclass):
            if cls.__module__ == module.__name__ and not info.name.startswith("_") and hasattr(cls, "transform"):
                found[info.name] = cls
    return found
