"""The tables [metrics] and [certify]: metrics learned for nearest neighbors, and how they are certified."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from inspect import signature
from math import inf
from typing import Any

from holdfast import members
from holdfast.members import unknown
from holdfast.recipes.build import scalar, section

_SET_BY_RUN = ("random_state", "progress", "device")  # parameters of learners that recipes cannot set


@dataclass(frozen=True, kw_only=True)
class CertifyConfig:
    """What is certified: ``samples`` test samples (None: all), for each number of neighbors in ``k``.

    Tables show the robust error at ``radii``. ``near`` limits the points of the predicted class that the bound for
    several votes considers (None: all), and ``box`` bounds adversarial examples (None: unbounded). Each stored part
    holds ``shard`` samples.
    """

    samples: int | None = 1000
    k: tuple[int, ...] = (1,)
    radii: tuple[float, ...]
    near: int | None = None
    box: tuple[float, float] | None = None
    shard: int = 100

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
class MetricConfig:
    """One metric: the name of a learner and its settings."""

    learner: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """True if the learner uses random numbers; otherwise it is fitted once for all seeds."""
        return "random_state" in signature(learners()[self.learner]).parameters

    def make(self, seed: int, device: str, progress: Callable[[int, float], None]) -> Any:
        """The unfitted learner."""
        cls = learners()[self.learner]
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
