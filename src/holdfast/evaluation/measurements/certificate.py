"""The measurement of certified radii."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.contracts import Certifier
from holdfast.data import Split
from holdfast.evaluation.measurements.measurement import Before, OfItsShard, Result, Shard, joined
from holdfast.evaluation.subject import Subject
from holdfast.geometry import Threat
from holdfast.records.parts import Part, seconds
from holdfast.records.records import column_name


@dataclass(frozen=True, kw_only=True)
class Certified(OfItsShard):
    """The certified radius of every sample and the norm of the shortest verified adversarial perturbation.

    The certifier is bound to its subject; ``recipe`` holds its settings. Where it abstains or certifies another label
    than the subject predicts, the radius is 0 and no adversarial perturbation is known. A certifier may have further
    attributes: ``certifies``, in words, if it certifies another classifier than the subject, whose predictions are then
    a column of their own; ``alpha``, the probability that a radius is wrong; and ``closed`` if the ball of a certified
    radius includes its boundary.
    """

    name: str
    certifier: Certifier
    recipe: Mapping[str, Any]
    shard: int | None = None
    after = ()
    code = ("losses", "models", "crafting", "data", "certify", "evaluation")
    arrays = frozenset({"label", "radius", "upper"})

    @property
    def closed(self) -> bool:
        """True if the ball of a certified radius includes its boundary."""
        return bool(getattr(self.certifier, "closed", False))

    def proves(self, threat: Threat) -> bool:
        """True if a radius says that the subject itself holds against a threat, and says so for certain."""
        low, high = getattr(self.certifier, "box", (-np.inf, np.inf))
        chance = hasattr(self.certifier, "alpha") or hasattr(self.certifier, "certifies")
        return self.certifier.norm == threat.norm and low <= threat.low and high >= threat.high and not chance

    @property
    def settings(self) -> Any:
        """The name and settings of the certifier."""
        return [self.name, self.recipe]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Certify a shard."""
        batch = shard.batch(subject.dtype)
        certificate = self.certifier(batch.x, rng=shard.rng.fork("certify").at(batch.index))
        return {name: getattr(certificate, name).cpu().numpy() for name in self.arrays}

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns radius and upper, and the cost of certifying."""
        norm, label = self.certifier.norm.name, joined(parts, "label")
        same, facts = (
            label == result.columns["label"],
            {"norm": norm, "closed": self.closed},
        )
        if (of := getattr(self.certifier, "certifies", None)) is not None:
            result.columns[column_name("prediction", norm, self.name)] = label
            same, facts["certifies"] = label >= 0, of
        if (alpha := getattr(self.certifier, "alpha", None)) is not None:
            facts["alpha"] = alpha
        for kind, otherwise in (("radius", 0.0), ("upper", np.inf)):
            result.columns[column_name(kind, norm, self.name)] = np.where(same, joined(parts, kind), otherwise)
        facts |= {"seconds": sum(map(seconds, parts)), "settings": dict(self.recipe)}
        result.facts.setdefault("certificates", {})[self.name] = facts
