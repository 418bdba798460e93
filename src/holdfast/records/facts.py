"""Facts about a measurement besides its columns: the attacks that were run and their cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spend:
    """The cost of a stage: wall-clock seconds, and forward and backward passes counted in samples."""

    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0

    @staticmethod
    def read(given: Mapping[str, Any]) -> "Spend":
        """The cost stored in facts; missing numbers count as zero."""
        return Spend(float(given.get("seconds", 0.0)), int(given.get("forwards", 0)), int(given.get("backwards", 0)))


@dataclass(frozen=True)
class Draws:
    """Accuracy of a randomized model over ``number`` draws of its random numbers: their mean, and the worst draw."""

    number: int
    mean: float
    worst: float

    @staticmethod
    def of(right: NDArray[np.bool_]) -> "Draws":
        """The draws from which samples were classified correctly in which draw, (n, draws)."""
        each = right.mean(0)
        return Draws(right.shape[1], float(each.mean()), float(each.min()))


@dataclass(frozen=True, kw_only=True)
class AttackFacts:
    """One attack as it was run: its threat, its cost, how many points it returned outside the threat, its settings.

    ``minimal`` marks a minimal-norm attack, which measures accuracy at every eps up to its own. ``stages`` of a cascade
    hold the name, the samples attacked and fooled, and the cost of each. A cascade that was run only on samples drawn
    at random among those that another attack left standing names that attack as ``drawn_from``. ``draws`` is None for
    a model without randomness.
    """

    norm: str
    eps: float
    minimal: bool = False
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    outside: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()
    drawn_from: str | None = None
    draws: Draws | None = None

    def __post_init__(self) -> None:
        if not self.norm or ":" in self.norm:
            raise ValueError(f"an attack has the norm {self.norm!r} but column names need one without ':'; rename it")
        if math.isnan(self.eps) or self.eps < 0:
            raise ValueError(f"an attack has eps {self.eps} but a length is at least 0; give the eps it was run at")

    def measured_at(self, eps: float) -> bool:
        """True if this attack was run at exactly ``eps``, or is a minimal-norm attack with at least this eps."""
        return eps <= self.eps if self.minimal else eps == self.eps

    def facts(self) -> dict[str, Any]:
        """The attack as JSON values; an infinite eps, which JSON cannot hold, is written as the text "inf"."""
        facts = asdict(self) | {"settings": dict(self.settings)} | ({"eps": "inf"} if math.isinf(self.eps) else {})
        return {name: value for name, value in facts.items() if name != "draws" or value is not None}

    @staticmethod
    def read(given: Mapping[str, Any]) -> "AttackFacts":
        """The attack written by :meth:`facts`; keys of a later version are ignored."""
        known = {name: given[name] for name in AttackFacts.__dataclass_fields__ if name in given}
        known["stages"] = tuple(known.get("stages", ()))
        missing = {"norm", "eps"} - known.keys()
        if missing:
            raise ValueError(f"the facts of an attack lack {', '.join(sorted(missing))}; give its norm and its eps")
        draws = {"draws": Draws(**known["draws"])} if known.get("draws") else {}
        return AttackFacts(**known | {"eps": float(known["eps"])} | draws)
