"""The search space of a sweep: ranges and lists of values for recipe keys, from [sweep.over] or --over."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from holdfast.recipes import source, toml
from holdfast.recipes.build import scalar

Value = str | bool | int | float
Sampler = Literal["tpe", "random", "grid"]

_FORMS = "a range such as 0.5..20 or 1e-4..1e-1:log, or a list such as [1, 3, 6]"


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``, on a linear or logarithmic scale; ``whole``: integers only."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def probes(self) -> tuple[Value, ...]:
        """Values that stand for all others when the space is checked: both ends."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    @property
    def listed(self) -> tuple[Value, ...] | None:
        """Every value, if there are finitely many."""
        return tuple(range(int(self.low), int(self.high) + 1)) if self.whole else None

    def __str__(self) -> str:
        ends = "..".join(str(end) if self.whole else f"{end:.6g}" for end in self.probes)
        return ends + (":log" if self.log else "")


@dataclass(frozen=True)
class Choice:
    """One of several unordered values."""

    values: tuple[Value, ...]

    @property
    def listed(self) -> tuple[Value, ...]:
        """Every value; all of them are checked."""
        return self.values

    probes = listed

    def __str__(self) -> str:
        return toml.value(self.values)


Axis = Range | Choice


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Settings of ``holdfast sweep``: the method, the keys that vary, the sampler, and the number of trials."""

    method: str | None = None  # default: the only one of the recipe
    sampler: Sampler = "tpe"
    trials: int | None = None  # default: every point of a grid, else 20
    seed: int = 0  # of the sampler; models are trained with the recipe's seeds
    over: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise ValueError(f"trials is {self.trials} but must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed} but must be zero or more")
        read_space(self.over)


def read_space(over: Mapping[str, Any]) -> dict[str, Axis]:
    """The axes of a sweep by key; keys are written as for ``--set``."""
    axes: dict[str, Axis] = {}
    for path, value in _leaves(over, ()):
        key = ".".join(map(toml.key, path))
        if key in axes:
            raise ValueError(f"over names {key} twice; leave one out")
        axes[key] = _axis(value, f"over.{key}")
    return axes


def _leaves(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        # "methods.TRADES.beta" may be one quoted key or nested tables; sections of a recipe have no dots
        key = (*path, name) if path else tuple(source.parts(name))
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _axis(value: Any, where: str) -> Axis:
    if isinstance(value, list | tuple):
        return _choice(value, where)
    if isinstance(value, str) and ".." in value:
        return _range(value, where)
    raise ValueError(f"{where} is {value!r} but must be {_FORMS}")


def _choice(values: list[Any] | tuple[Any, ...], where: str) -> Choice:
    for value in values:
        if not isinstance(value, Value) or (isinstance(value, float) and not isfinite(value)):
            raise ValueError(f"{where} lists {value!r} but values are finite numbers, texts, true or false")
    if len(set(values)) < max(2, len(values)):
        raise ValueError(f"{where} is {toml.value(values)} but needs two or more different values; use --set for one")
    return Choice(tuple(values))


def _range(text: str, where: str) -> Range:
    ends, colon, kind = text.partition(":")
    first, _, second = ends.partition("..")
    if colon and kind.strip() != "log":
        raise ValueError(f"{where} is {text!r}; after the colon only log is known, as in 1e-4..1e-1:log")
    try:
        given = [source.value(end.strip()) for end in (first, second)]
        low, high = (scalar(float, end, where) for end in given)
    except ValueError:
        raise ValueError(f"{where} is {text!r} but must be {_FORMS}") from None
    if not (isfinite(low) and isfinite(high)):
        raise ValueError(f"{where} is {text!r} but both ends must be finite")
    if low >= high:
        hint = f"swap its ends: {second}..{first}" if low > high else "give two different ends, or use --set"
        raise ValueError(f"{where} is {text!r}, which holds no values; {hint}")
    if colon and low <= 0:
        raise ValueError(f"{where} is {text!r} but a log range must begin above 0")
    return Range(low, high, log=bool(colon), whole=all(isinstance(end, int) for end in given))
