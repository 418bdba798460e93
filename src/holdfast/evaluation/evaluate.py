"""The evaluator: runs measurements on a subject, shard by shard, and stores every finished part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic, chosen
from holdfast.crafting.microbatch import micro
from holdfast.crafting.view import described
from holdfast.data import Split
from holdfast.data.split import digest_of
from holdfast.evaluation.choose import crafting_with, stored_micro
from holdfast.evaluation.measurements import Before, Measurement, Result, Shard
from holdfast.evaluation.subject import Subject
from holdfast.records.parts import Part, made
from holdfast.records.provenance import code_version, distinct
from holdfast.records.records import Records
from holdfast.rng import Rng

Tick = Callable[[int, int, str], None]
"""Called with (parts done, total parts, name of the measurement) after every part."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an evaluation is computed: seed, samples per stored part, device, arithmetic and crafting mode of attacks."""

    seed: int
    shard: int
    device: torch.device
    arithmetic: Arithmetic = "auto"
    crafting: Mode = "auto"


def evaluate(
    subject: Subject, samples: Split, measurements: Sequence[Measurement], settings: Settings, tick: Tick
) -> Records:
    """Measure a subject and save its records; parts that an earlier call finished are read, not computed again."""
    shards = {size: _shards(samples, settings, size) for size in {None, *(one.shard for one in measurements)}}
    result = Result(facts={**subject.facts})
    with _crafting(subject, shards[None][0], settings, result):
        parts = _parts(subject, shards, measurements, settings, tick)
    for measurement in measurements:
        measurement.collect(parts[measurement.name], samples, result)
    makers = distinct(made(part) for of_shards in parts.values() for part in of_shards)
    result.facts |= {"made": makers, "versions": makers[-1]["versions"], "commit": makers[-1]["commit"]}
    records = Records(result.columns, result.facts, result.arrays)
    records.save(subject.folder / "records")
    return records


def _shards(samples: Split, settings: Settings, size: int | None) -> list[Shard]:
    rng = Rng(settings.seed).fork("evaluate")
    pieces = torch.split(torch.arange(len(samples)), size or settings.shard)
    return [Shard(samples.take(which), number, rng, settings.device) for number, which in enumerate(pieces)]


@contextmanager
def _crafting(subject: Subject, first: Shard, settings: Settings, result: Result) -> Iterator[None]:
    """Context in which attacks compute as the settings say; automatic choices are added to the facts."""
    if subject.model is None:
        yield
        return
    with crafting_with(settings.arithmetic, settings.crafting, settings.device, subject.folder):
        batch = first.batch()
        size = stored_micro(subject.model, subject.digest, batch.x, batch.y, subject.folder)
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
    tasks = [(measurement, shard) for measurement in measurements for shard in shards[measurement.shard]]
    parts: dict[str, list[Part]] = {measurement.name: [] for measurement in measurements}
    for done, (measurement, shard) in enumerate(tasks, start=1):
        before = {name: parts[name] for name in measurement.after}
        key, code = _key(subject, shard, measurement, settings, before), code_version(*measurement.code)
        compute = partial(measurement.measure, subject, shard, before)
        parts[measurement.name].append(subject.cache.get(key, code, measurement.arrays, compute))
        tick(done, len(tasks), measurement.name)
    return parts


def _key(subject: Subject, shard: Shard, measurement: Measurement, settings: Settings, before: Before) -> list[Any]:
    """Everything that a part depends on except the code."""
    samples = digest_of(shard.samples.x, shard.samples.y, shard.samples.index)
    computed = None if subject.model is None else [str(chosen(settings.device)), settings.crafting]
    identity = [type(measurement).__name__, measurement.settings, measurement.depends_on(shard, before)]
    return [subject.digest, samples, identity, settings.seed, computed, shard.number]
