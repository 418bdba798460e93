"""The evaluator: runs measurements on a subject, shard by shard, and stores every finished part."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from typing import Any

import torch

from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic, chosen
from holdfast.crafting.microbatch import micro
from holdfast.crafting.view import described
from holdfast.data import Split
from holdfast.data.split import digest_of
from holdfast.evaluation.choose import crafting_with, stored_micro
from holdfast.evaluation.judge import FEW, randomized
from holdfast.evaluation.measurements.attack import CLEAN
from holdfast.evaluation.measurements.measurement import Before, Measurement, Result, Shard
from holdfast.evaluation.subject import Subject
from holdfast.records.parts import Part, made
from holdfast.records.provenance import code_version, distinct
from holdfast.records.records import Records
from holdfast.rng import Rng
from holdfast.settings import check_types

_RANDOMIZED = 250  # samples per part of a randomized network

Tick = Callable[[int, int, str], None]
"""Called with (parts done, total parts, name of the measurement) after every part."""


@dataclass(frozen=True)
class Budget:
    """What an evaluation may cost: wall-clock seconds, and forward and backward passes counted in samples.

    The clean prediction is always finished. An attack, or a stage of a cascade, that the budget does not suffice for
    is left out of the records, and ``facts["left_out"]`` names the attack.
    """

    seconds: float = inf
    passes: float = inf

    def __post_init__(self) -> None:
        check_types(self)
        if not (self.seconds > 0 and self.passes > 0):
            raise ValueError(f"the budget is {self.seconds} seconds and {self.passes} passes; both must be above 0")

    def used(self, began: float, parts: Iterable[Part]) -> bool:
        """True if the time since ``began`` or the passes of these parts are no less than the budget."""
        if time.perf_counter() - began >= self.seconds:
            return True
        spent = (int(part[name]) for part in parts for name in ("forwards", "backwards") if name in part)
        return self.passes < inf and sum(spent) >= self.passes


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an evaluation is computed: seed, samples per stored part, device, arithmetic and crafting mode of attacks."""

    seed: int
    shard: int
    device: torch.device
    arithmetic: Arithmetic = "auto"
    crafting: Mode = "auto"
    budget: Budget = Budget()


def evaluate(
    subject: Subject, samples: Split, measurements: Sequence[Measurement], settings: Settings, tick: Tick
) -> Records:
    """Measure a subject and save its records; parts that an earlier call finished are read, not computed again."""
    usual = _usual_size(subject, samples, settings)
    shards = {size: _shards(samples, settings, size or usual) for size in {None, *(one.shard for one in measurements)}}
    result = Result(facts={**subject.facts, "samples": digest_of(samples.x, samples.y, samples.index)})
    with _crafting(subject, shards[None], settings, result):
        parts = _parts(subject, shards, measurements, settings, tick)
    for measurement in measurements:
        if measurement.name in parts:
            measurement.collect(parts[measurement.name], samples, result)
    left_out = [getattr(one, "title", one.name) for one in measurements if one.name not in parts]
    if left_out:
        result.facts["left_out"] = list(dict.fromkeys(left_out))
    makers = distinct(made(part) for of_shards in parts.values() for part in of_shards)
    result.facts |= {"made": makers, "versions": makers[-1]["versions"], "commit": makers[-1]["commit"]}
    records = Records(result.columns, result.facts, result.arrays)
    records.save(subject.folder / "records")
    return records


def _usual_size(subject: Subject, samples: Split, settings: Settings) -> int:
    """Samples per part. The noise of a randomized network follows the batch, so that its parts are always of one size:
    else its columns would depend on the setting."""
    first = _shards(samples, settings, FEW)[0].batch(subject.dtype)
    rng = Rng(settings.seed).fork("division")
    return _RANDOMIZED if subject.model is not None and randomized(subject.model, first.x, rng) else settings.shard


def _shards(samples: Split, settings: Settings, size: int) -> list[Shard]:
    rng = Rng(settings.seed).fork("evaluate")
    pieces = torch.split(torch.arange(len(samples)), size)
    return [Shard(samples.take(which), number, rng, settings.device) for number, which in enumerate(pieces)]


@contextmanager
def _crafting(subject: Subject, shards: Sequence[Shard], settings: Settings, result: Result) -> Iterator[None]:
    """Context in which attacks compute as the settings say; automatic choices are added to the facts."""
    if subject.model is None:
        yield
        return
    folder = subject.cache.folder.parent  # one choice for all that is measured of a network
    with crafting_with(settings.arithmetic, settings.crafting, settings.device, folder):
        batch, total = shards[0].batch(), sum(len(shard.samples) for shard in shards)
        size = stored_micro(subject.model, subject.digest, batch.x, batch.y, total, folder)
        result.facts |= {"crafting": described(subject.model), "micro": size}
        with micro(size):
            yield


def _parts(
    subject: Subject,
    shards: Mapping[int | None, Sequence[Shard]],
    measurements: Sequence[Measurement],
    settings: Settings,
    tick: Tick,
) -> dict[str, list[Part]]:
    """The parts of the measurements that the budget suffices for, by name."""
    tasks = [(measurement, shard) for measurement in measurements for shard in shards[measurement.shard]]
    parts: dict[str, list[Part]] = {measurement.name: [] for measurement in measurements}
    began = time.perf_counter()
    if tasks:
        tick(0, len(tasks), tasks[0][0].name)
    for done, (measurement, shard) in enumerate(tasks, start=1):
        if measurement.name != CLEAN and settings.budget.used(began, chain.from_iterable(parts.values())):
            tick(len(tasks), len(tasks), "budget used")
            break
        before = {name: parts[name] for name in measurement.after}
        key, code = _key(subject, shard, measurement, settings, before), code_version(*measurement.code)
        compute = partial(measurement.measure, subject, shard, before)
        parts[measurement.name].append(subject.cache.get(key, code, measurement.arrays, compute))
        tick(done, len(tasks), measurement.name)
    return {one.name: parts[one.name] for one in measurements if len(parts[one.name]) == len(shards[one.shard])}


def _key(subject: Subject, shard: Shard, measurement: Measurement, settings: Settings, before: Before) -> list[Any]:
    """Everything that a part depends on except the code."""
    samples = digest_of(shard.samples.x, shard.samples.y, shard.samples.index)
    computed = None if subject.model is None else [str(chosen(settings.device)), settings.crafting]
    identity = [type(measurement).__name__, measurement.settings, measurement.depends_on(shard, before)]
    return [subject.digest, samples, identity, settings.seed, computed, shard.number]
