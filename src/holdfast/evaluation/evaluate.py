"""Evaluation: every attack on every sample that is still worth attacking, judged, in parts that survive a stop."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts import Attack, Batch, Meter, Rows
from holdfast.crafting.arithmetic import chosen
from holdfast.crafting.microbatch import measured, micro
from holdfast.data import Split
from holdfast.evaluation.judge import judge, predict
from holdfast.recipes.schema import curve_name
from holdfast.records.atomic import write_text
from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records, array_name, column_name
from holdfast.records.stored import read_arrays, read_json, write_arrays
from holdfast.rng import Rng

SHOWN = 8
CLEAN = frozenset({"label", "forwards", "backwards", "seconds"})
ATTACKED = frozenset({"fooled", "distance", "outside"})

Part = Mapping[str, NDArray[Any]]
Tick = Callable[[int, int, str], None]
"""Told (parts done, parts in all, a few words) after every part."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attack to run. ``after`` names a trial whose victims need no second attack: they fall at a larger eps too."""

    name: str
    attack: Attack
    settings: Mapping[str, Any]
    after: str | None = None
    shown: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model under test: the module, what identifies it, and where its records go."""

    model: nn.Module
    digest: str
    folder: Path
    facts: Mapping[str, Any]


def trials(
    attacks: Mapping[str, tuple[Attack, Mapping[str, Any]]],
    curve: str | None = None,
    eps: tuple[float, ...] = (),
    strip: str | None = None,
) -> list[Trial]:
    """The attacks of a recipe, then its curve: the same attack at every other eps, in growing order."""
    found = [Trial(name=n, attack=a, settings=s, shown=n == strip) for n, (a, s) in attacks.items()]
    if curve is None:
        return found
    attack, settings = attacks[curve]
    before = None
    for radius in sorted({*eps, attack.threat.eps}):
        name = curve if radius == attack.threat.eps else curve_name(curve, radius)
        if name != curve:
            changed = {**settings, "at": radius}
            found.append(Trial(name=name, attack=attack.at(radius), settings=changed, after=before))
        before = name
    return found


def evaluate(
    subject: Subject, split: Split, todo: list[Trial], *, seed: int, shard: int, device: torch.device, tick: Tick
) -> Records:
    """Records of a model under attacks; parts that an earlier call finished are read, not computed again."""
    bench = _Bench(subject, split, seed, shard, device)
    size = bench.micro()
    with micro(size):
        results = _parts(bench, todo, tick)
    records = _records(subject, split, todo, results, size)
    records.save(subject.folder / "records")
    return records


def _parts(bench: "_Bench", todo: list[Trial], tick: Tick) -> dict[str, list[Part]]:
    total = len(bench.shards) * (len(todo) + 1)
    results: dict[str, list[Part]] = {}
    done = 0
    for name, trial in [("", None), *((t.name, t) for t in todo)]:
        results[name] = []
        for number in range(len(bench.shards)):
            before = [results[""][number]] if trial else []
            if trial and trial.after:
                before.append(results[trial.after][number])
            results[name].append(bench.part(trial, number, before))
            done += 1
            tick(done, total, name or "clean")
    return results


class _Bench:
    """Runs or recalls parts: one trial on one shard of the samples."""

    def __init__(self, subject: Subject, split: Split, seed: int, shard: int, device: torch.device) -> None:
        self.subject, self.split, self.device = subject, split, device
        self.rng = Rng(seed).fork("evaluate")
        self.seed = seed
        self.shards = list(torch.split(torch.arange(len(split)), shard))
        self.folder = subject.folder / "parts"
        self.folder.mkdir(parents=True, exist_ok=True)

    def micro(self) -> int:
        """The number of samples at a time: measured once, then read, so that a resumed run goes on as it began."""
        path = self.folder / "micro.json"
        for_what = [self.subject.digest, str(self.device), str(chosen(self.device)), torch.get_num_threads()]
        try:
            known = read_json(path)
        except (FileNotFoundError, ValueError):
            known = {}
        if known.get("for") != for_what:
            batch = self.split.batch(self.shards[0], self.device)
            known = {"for": for_what, "size": measured(self.subject.model, batch.x, batch.y)}
            write_text(path, json.dumps(known) + "\n")
        return int(known["size"])

    def part(self, trial: Trial | None, number: int, before: list[Part]) -> Part:
        """The stored part if it is of the same model, data, attack and seed; else a fresh one, stored."""
        path = self.folder / f"{self._key(trial, number)}.npz"
        stored = read_arrays(path, CLEAN if trial is None else CLEAN | ATTACKED)
        if stored is not None:
            return stored
        batch = self.split.batch(self.shards[number], self.device)
        started = time.perf_counter()
        part = self._clean(batch) if trial is None else self._attack(trial, number, batch, before)
        part["seconds"] = np.array(time.perf_counter() - started)
        write_arrays(path, part)
        return part

    def _key(self, trial: Trial | None, number: int) -> str:
        which = self.shards[number]
        x, y = self.split.x[which].contiguous(), self.split.y[which]
        samples = sha256(x.numpy().tobytes() + y.numpy().tobytes() + self.split.index[which].numpy().tobytes())
        what = (
            None if trial is None else [trial.name, trial.settings, str(trial.attack.threat), trial.after, trial.shown]
        )
        how = [self.seed, str(chosen(self.device))]  # parts made with other arithmetic are other parts
        key = json.dumps([1, self.subject.digest, samples.hexdigest(), what, how, number], sort_keys=True)
        return sha256(key.encode()).hexdigest()[:32]

    def _clean(self, batch: Batch) -> dict[str, NDArray[Any]]:
        label = predict(self.subject.model, batch.x, self.rng.fork("clean"))
        return {"label": label.cpu().numpy(), "forwards": np.array(len(batch)), "backwards": np.array(0)}

    def _attack(self, trial: Trial, number: int, batch: Batch, before: list[Part]) -> dict[str, NDArray[Any]]:
        model, threat, meter = self.subject.model, trial.attack.threat, Meter()
        part = _standing(batch, before)
        up = torch.from_numpy(~part["fooled"]).to(self.device)
        x, rows = batch.x[up], Rows(batch.y[up], batch.index[up])
        x_adv = trial.attack(model, x, rows, rng=self.rng, watch=meter)
        verdict = judge(model, x, x_adv, rows.y, threat, self.rng.fork("judge"))
        where = up.cpu().numpy()
        for name in ("fooled", "distance", "label"):
            part[name][where] = getattr(verdict, name).cpu().numpy()
        part["outside"] = np.array(int((~verdict.inside).sum()))
        part["forwards"], part["backwards"] = np.array(meter.cost.forwards), np.array(meter.cost.backwards)
        if trial.shown and number == 0:
            everyone = batch.x.clone()
            everyone[up] = x_adv
            part["images"] = everyone[:SHOWN].cpu().numpy()
        return part


def _standing(batch: Batch, before: list[Part]) -> dict[str, NDArray[Any]]:
    """The columns before the attack: who is misclassified clean has fallen at distance 0, who fell before stays so."""
    label, y = before[0]["label"], batch.y.cpu().numpy()
    part = {"fooled": label != y, "distance": np.zeros(len(y)), "label": label.copy()}
    for earlier in before[1:]:
        fell = earlier["fooled"]
        part = {name: np.where(fell, earlier[name], column) for name, column in part.items()}
    return part


def _records(
    subject: Subject, split: Split, todo: list[Trial], results: Mapping[str, list[Part]], size: int
) -> Records:
    clean = results[""]
    columns = {"index": split.index.numpy(), "y": split.y.numpy(), "label": _joined(clean, "label")}
    facts: dict[str, Any] = {**subject.facts, "micro": size, "clean": _spent(clean), "attacks": {}}
    arrays: dict[str, NDArray[Any]] = {}
    for trial in todo:
        parts, norm = results[trial.name], trial.attack.threat.norm.name
        for kind in ("fooled", "distance", "label"):
            columns[column_name(kind, norm, trial.name)] = _joined(parts, kind)
        outside = sum(int(part["outside"]) for part in parts)
        known = AttackFacts(
            norm=norm, eps=trial.attack.threat.eps, outside=outside, settings=trial.settings, **_spent(parts)
        )
        facts["attacks"][trial.name] = known.facts()
        arrays |= dict(_images(trial, parts[0], split, norm))
    return Records(columns, facts, arrays)


def _images(trial: Trial, part: Part, split: Split, norm: str) -> Iterator[tuple[str, NDArray[Any]]]:
    if "images" in part and part["images"].ndim == 4:
        shown = torch.arange(len(part["images"]))
        yield "shown", split.index[shown].numpy()
        yield "clean", split.batch(shown).x.numpy()
        yield array_name(norm, trial.name), part["images"]


def _joined(parts: list[Part], name: str) -> NDArray[Any]:
    return np.concatenate([part[name] for part in parts])


def _spent(parts: list[Part]) -> dict[str, Any]:
    passes = {name: sum(int(part[name]) for part in parts) for name in ("forwards", "backwards")}
    return {"seconds": sum(float(part["seconds"]) for part in parts), **passes}
