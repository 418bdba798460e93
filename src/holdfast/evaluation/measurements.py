"""Measurements: each turns a subject and samples into columns, one row per sample.

A measurement is computed shard by shard; the evaluator stores each shard's result, a part, and puts parts together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.contracts import Attack, Batch, Certifier, Meter, Predictor, Rows
from holdfast.data import Split
from holdfast.evaluation.judge import attack_and_judge
from holdfast.evaluation.subject import Subject
from holdfast.records.facts import AttackFacts
from holdfast.records.parts import Part, seconds
from holdfast.records.records import array_name, column_name
from holdfast.rng import Rng

CLEAN = "clean"
SHOWN = 8  # images of an attack that are stored for the page

Arrays = dict[str, NDArray[Any]]


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

    ``after`` names measurements that run before and whose parts of the same shard ``measure`` is given. ``code`` names
    the folders of the package that compute it and ``settings``, a JSON value, all that it depends on besides the
    subject, the samples and the seed. A stored part that lacks one of ``arrays`` is computed again.
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
    def measure(self, subject: Subject, shard: Shard, before: Mapping[str, Part]) -> Part: ...
    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None: ...


@dataclass(frozen=True)
class Clean:
    """The prediction for every clean sample."""

    name = CLEAN
    after = ()
    code = ("losses", "models", "crafting", "data", "evaluation", "certify")
    settings = None
    arrays = frozenset({"label", "forwards", "backwards"})

    def measure(self, subject: Subject, shard: Shard, before: Mapping[str, Part]) -> Part:
        """The predicted labels."""
        label = subject.predict(shard.batch(subject.dtype).x, shard.rng.fork("clean"))
        return {"label": label.cpu().numpy(), "forwards": np.array(len(label)), "backwards": np.array(0)}

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns index, y and label."""
        result.columns |= {"index": samples.index.numpy(), "y": samples.y.numpy(), "label": _joined(parts, "label")}
        result.facts[CLEAN] = _cost(parts)


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """One attack on every correctly classified sample, judged.

    ``easier`` names a measurement with the same attack at a smaller eps: the samples it fooled count as fooled here
    too and are not attacked again. With ``shown`` the first adversarial images are stored.
    """

    name: str
    attack: Attack
    recipe: Mapping[str, Any]
    easier: str | None = None
    shown: bool = False
    code = ("losses", "models", "crafting", "data", "attacks", "certify", "evaluation")
    arrays = frozenset({"label", "forwards", "backwards", "fooled", "distance", "outside"})

    @property
    def after(self) -> tuple[str, ...]:
        """The clean prediction, and the easier attack where there is one."""
        return (CLEAN,) if self.easier is None else (CLEAN, self.easier)

    @property
    def settings(self) -> Any:
        """The attack as a recipe writes it, its threat, and the measurement it continues."""
        return [self.name, self.recipe, str(self.attack.threat), self.easier, self.shown]

    def measure(self, subject: Subject, shard: Shard, before: Mapping[str, Part]) -> Part:
        """Attack the samples that are still classified correctly."""
        batch, meter, rng = shard.batch(subject.dtype), Meter(), shard.rng
        part = _before(batch, [before[name] for name in self.after])
        todo = torch.from_numpy(~part["fooled"]).to(shard.device)
        x, rows = batch.x[todo], Rows(batch.y[todo], batch.index[todo])
        x_adv, verdict = attack_and_judge(
            _target(subject, self, rng.fork("predict")),
            self.attack,
            x,
            rows,
            rng=rng,
            judge_rng=rng.fork("judge"),
            watch=meter,
        )
        where = todo.cpu().numpy()
        for name in ("fooled", "distance", "label"):
            part[name][where] = getattr(verdict, name).cpu().numpy()
        part["outside"] = np.array(int((~verdict.inside).sum()))
        part["forwards"], part["backwards"] = np.array(meter.cost.forwards), np.array(meter.cost.backwards)
        if self.shown and shard.number == 0:
            images = batch.x.clone()
            images[todo] = x_adv
            part["images"] = images[:SHOWN].cpu().numpy()
        return part

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns fooled, distance and label of the attack, its facts, and its images if they were stored."""
        threat = self.attack.threat
        for kind in ("fooled", "distance", "label"):
            result.columns[column_name(kind, threat.norm.name, self.name)] = _joined(parts, kind)
        facts = AttackFacts(
            norm=threat.norm.name,
            eps=threat.eps,
            minimal=self.attack.minimal,
            outside=sum(int(part["outside"]) for part in parts),
            settings=self.recipe,
            **_cost(parts),
        )
        result.facts.setdefault("attacks", {})[self.name] = facts.facts()
        result.arrays |= dict(self._images(parts[0], samples))

    def _images(self, part: Part, samples: Split) -> Iterator[tuple[str, NDArray[Any]]]:
        if "images" in part and part["images"].ndim == 4:
            shown = torch.arange(len(part["images"]))
            yield "shown", samples.index[shown].numpy()
            yield "clean", samples.batch(shown).x.numpy()
            yield array_name(self.attack.threat.norm.name, self.name), part["images"]


@dataclass(frozen=True, kw_only=True)
class Certified:
    """The certified radius of every sample and the norm of the shortest verified adversarial perturbation.

    The certifier is bound to its subject; ``recipe`` holds its settings.
    """

    name: str
    certifier: Certifier
    recipe: Mapping[str, Any]
    after = ()
    code = ("losses", "models", "crafting", "data", "certify", "evaluation")
    arrays = frozenset({"radius", "upper"})

    @property
    def settings(self) -> Any:
        """The name and settings of the certifier."""
        return [self.name, self.recipe]

    def measure(self, subject: Subject, shard: Shard, before: Mapping[str, Part]) -> Part:
        """Certify a shard."""
        certificate = self.certifier(shard.batch(subject.dtype).x, rng=shard.rng.fork("certify"))
        return {name: getattr(certificate, name).cpu().numpy() for name in ("radius", "upper")}

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns radius and upper, and the cost of certifying."""
        norm = self.certifier.norm.name
        for kind in ("radius", "upper"):
            result.columns[f"{kind}:{norm}:{self.name}"] = _joined(parts, kind)
        cost = {"norm": norm, "seconds": sum(map(seconds, parts))}
        result.facts["certifier"] = {"name": self.name, **self.recipe, **cost}


def _target(subject: Subject, measurement: Attacked, rng: Rng) -> Predictor:
    """The module of a subject, or its predictions where it has none, which suffice for black-box attacks."""
    if subject.model is not None:
        return subject.model
    if not measurement.attack.black_box:
        raise ValueError(
            f"{subject.name} has no network, so {measurement.name} finds no gradients there; leave it out or use "
            "attacks that need only predictions, such as rays and hopskipjump"
        )
    return lambda x: subject.predict(x, rng)


def _before(batch: Batch, parts: Sequence[Part]) -> Arrays:
    """Misclassified samples count as fooled at distance 0; earlier successes carry over."""
    label, y = parts[0]["label"], batch.y.cpu().numpy()
    columns = {"fooled": label != y, "distance": np.zeros(len(y)), "label": label.copy()}
    for earlier in parts[1:]:
        columns = {name: np.where(earlier["fooled"], earlier[name], column) for name, column in columns.items()}
    return columns


def _joined(parts: Sequence[Part], name: str) -> NDArray[Any]:
    return np.concatenate([part[name] for part in parts])


def _cost(parts: Sequence[Part]) -> dict[str, Any]:
    passes = {name: sum(int(part[name]) for part in parts) for name in ("forwards", "backwards")}
    return {"seconds": sum(map(seconds, parts)), **passes}
