"""What a measurement is: it turns a subject and samples into columns, one row per sample.

A measurement is computed shard by shard; the evaluator stores each shard's result, a part, and puts parts together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.contracts import Batch
from holdfast.data import Split
from holdfast.evaluation.subject import Subject
from holdfast.records.parts import Part, seconds
from holdfast.rng import Rng

Arrays = dict[str, NDArray[Any]]
Before = Mapping[str, Sequence[Part]]
"""The parts of all shards of earlier measurements, by their names."""


@dataclass(frozen=True)
class Shard:
    """Consecutive samples, the number of the shard, and the rng and device that measurements use."""

    samples: Split
    number: int
    rng: Rng
    device: torch.device

    def batch(self, dtype: torch.dtype = torch.float32) -> Batch:
        """The samples as a batch."""
        return self.samples.batch(torch.arange(len(self.samples)), self.device, dtype)


@dataclass
class Result:
    """What measurements add to records: columns, facts and named arrays."""

    columns: Arrays = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


class Measurement(Protocol):
    """``measure`` gives the part of one shard, ``collect`` puts the parts of all shards into a result.

    ``after`` names measurements that run before and whose parts of all shards ``measure`` is given. ``code`` names the
    folders of the package that compute it and ``settings``, a JSON value, all that it depends on besides the subject,
    the samples of the shard and the seed; ``depends_on`` adds what it reads from parts that these do not determine. A
    stored part that lacks one of ``arrays`` is computed again. ``shard`` is the number of samples of a part, for
    measurements that come after no other; None: as the evaluation says.
    """

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def code(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> Any: ...
    @property
    def arrays(self) -> frozenset[str]: ...
    @property
    def shard(self) -> int | None: ...
    def depends_on(self, shard: Shard, before: Before) -> Any: ...
    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part: ...
    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None: ...


class OfItsShard:
    """A measurement that reads no parts, or only the clean prediction of its shard."""

    def depends_on(self, shard: Shard, before: Before) -> Any:
        """Nothing beside the shard itself, which is part of every key."""
        return None


def joined(parts: Sequence[Part], name: str) -> NDArray[Any]:
    """One array of all shards."""
    return np.concatenate([part[name] for part in parts])


def cost(parts: Sequence[Part]) -> dict[str, Any]:
    """Seconds and passes of all shards."""
    passes = {name: sum(int(part[name]) for part in parts) for name in ("forwards", "backwards")}
    return {"seconds": sum(map(seconds, parts)), **passes}
