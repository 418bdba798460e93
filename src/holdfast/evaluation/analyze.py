"""A look inside a network: its features under attack and the loss around samples, measured as any evaluation is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any, cast

import torch
from torch import Tensor, nn

from holdfast.analysis.detection import save_detector
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Loss
from holdfast.data import Split
from holdfast.evaluation.evaluate import Settings, Tick, evaluate
from holdfast.evaluation.measurements.attack import Clean
from holdfast.evaluation.measurements.features import Features, Path, features_name, label_name, network_of
from holdfast.evaluation.measurements.inside import Classes, Gallery, Map, Placed
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.measurements.surroundings import Gaps, Restarts, Surface
from holdfast.evaluation.subject import Subject
from holdfast.geometry import Threat
from holdfast.losses.classification import cross_entropy
from holdfast.losses.detection import Evasion
from holdfast.models.classifier import FEATURES, LOGITS, adapt
from holdfast.models.detector import Detector
from holdfast.recipes.tables.analyze import AnalyzeConfig, Level
from holdfast.records.records import Records

FOLDER = "inside"
NATURAL, AWARE = "natural", "detector-aware "
GAP_STEPS = (0, 1, 2, 5, 10, 20)
_POINTS, _FRAMES = 20, 10  # of a path: steps that are stored, and those of them that are shown on the map
_ORDER = ("gallery", "valid", "samples", "followed")  # of the sets that are measured
_PICTURED = 8  # samples with images of their nearest neighbors
LEAST_ON_MAP = 10  # samples


@dataclass(frozen=True, kw_only=True)
class Sets:
    """The samples of an analysis: those that are attacked, training samples beside which they are seen, and validation
    samples, on which the threshold of the detector is set (None: there is no threshold)."""

    samples: Split
    gallery: Split
    valid: Split | None = None


@dataclass(frozen=True)
class Plan:
    """What is analyzed under which threat."""

    threat: Threat
    config: AnalyzeConfig

    @property
    def levels(self) -> Sequence[Level]:
        """The attacks, the largest eps last."""
        return self.config.levels(self.threat)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the last attack at which paths are stored."""
        return _spread(self.levels[-1].steps, _POINTS)

    @property
    def frames(self) -> tuple[int, ...]:
        """The positions of a path that the map shows: the clean sample first."""
        return (0, *_spread(len(self.steps), _FRAMES))

    @property
    def gap_eps(self) -> tuple[float, ...]:
        """Where the linearity gap is measured."""
        return tuple(self.levels[-1].threat.eps * share for share in (0.25, 0.5, 1.0))

    def facts(self) -> dict[str, Any]:
        """What the report has to know."""
        last = self.levels[-1]
        return {
            "norm": self.threat.norm.name,
            "levels": [{"name": one.name, "eps": one.threat.eps, "steps": one.steps} for one in self.levels],
            "k": list(self.config.k),
            "layer": self.config.layer,
            "path": {"attack": last.name, "steps": [0, *self.steps], "frames": list(self.frames)},
            "gaps": {"eps": list(self.gap_eps), "steps": list(GAP_STEPS)},
            "restarts": self.config.restarts,
            "fpr": self.config.fpr,
        }


def _spread(n: int, count: int) -> tuple[int, ...]:
    """At most ``count`` evenly spaced numbers from 1 to n, n among them."""
    many = min(n, count)
    return tuple(n * (i + 1) // many for i in range(many))


def analyze(subject: Subject, sets: Sets, plan: Plan, settings: Settings, tick: Tick) -> tuple[Records, Records]:
    """Measure a network; returns the records of the samples, and of those that are followed along the attack.

    They are stored in folders inside that of the subject, with the detector. Parts are stored with the subject, so an
    interrupted analysis continues where it stopped.
    """
    _check(sets)
    work = _Work(_with_features(subject, plan.config.layer), plan, settings, tick)
    gallery = work.features("gallery", sets.gallery)
    detector = Detector.fit(gallery, sets.gallery.y, plan.config.layer)
    if sets.valid is not None:
        detector.calibrate(work.features("valid", sets.valid, right=True), plan.config.fpr)
    save_detector(detector, work.folder / "detector.safetensors")
    found = work.samples(sets.samples, Gallery(sets.gallery, gallery), detector)
    return found, work.followed(sets.samples.spread(plan.config.followed))


def _with_features(subject: Subject, layer: str | None) -> Subject:
    """The network with the output of this layer as its features; its parts are not those of another layer."""
    if layer is None:
        return subject
    model = cast(nn.Module, adapt(network_of(subject), layer))
    return replace(subject, model=model, digest=f"{subject.digest} {layer}")


def _check(sets: Sets) -> None:
    """Refuse samples with a single one of a class, in which there is no distance, or of a class beyond the gallery, or
    of another shape."""
    shapes = [tuple(given.x.shape[1:]) for given in (sets.samples, sets.gallery)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"samples have shape {shapes[0]} and the gallery {shapes[1]}; give samples of the same data")
    counts = sets.samples.y.bincount()
    missing = sorted({*sets.samples.y.tolist()} - {*sets.gallery.y.tolist()})
    if missing:
        raise ValueError(
            f"the gallery has no sample of class {missing[0]}, which the samples have; give training samples of every "
            "class"
        )
    single = (counts == 1).nonzero().flatten().tolist()
    if single:
        raise ValueError(
            f"class {single[0]} has one sample, so it has no distance within the class; analyze more samples or leave "
            "the class out"
        )


@dataclass(frozen=True)
class _Work:
    """Measures sets of samples, each with records in a folder of its own."""

    subject: Subject
    plan: Plan
    settings: Settings
    tick: Tick

    @property
    def folder(self) -> File:
        return self.subject.folder / FOLDER

    def _measure(self, name: str, samples: Split, measurements: Sequence[Measurement], **facts: Any) -> Records:
        placed = replace(
            self.subject,
            folder=self.folder / name,
            parts=self.subject.cache.folder,
            facts={**self.subject.facts, "analyze": self.plan.facts() | facts},
        )
        placed.folder.mkdir(parents=True, exist_ok=True)
        # in one shard, because a map needs all samples at once
        settings = replace(self.settings, shard=len(samples)) if name == "followed" else self.settings
        return evaluate(placed, samples, [Clean(), *measurements], settings, self._part(name))

    def _part(self, name: str) -> Tick:
        """Progress of one of the sets, as a part of the whole."""
        before, whole = 100 * _ORDER.index(name), 100 * len(_ORDER)
        return lambda done, total, words: self.tick(before + 100 * done // total, whole, words)

    def features(self, name: str, samples: Split, right: bool = False) -> Tensor:
        """Features of clean samples; only of those that are classified correctly if ``right``."""
        found = self._measure(name, samples, [Features(name=NATURAL)])
        # a copy, because torch takes no arrays that cannot be written
        features = torch.from_numpy(found.arrays[features_name(NATURAL)].copy())
        return features[torch.from_numpy(found.arrays[label_name(NATURAL)].copy()) == samples.y] if right else features

    def samples(self, samples: Split, gallery: Gallery, detector: Detector) -> Records:
        """Features before and after each attack and their places in the gallery, logits, and class weights."""
        natural = Features(name=NATURAL, layers=(FEATURES, LOGITS), shown=_PICTURED)
        score, known = detector.to(self.settings.device).score, {"detector": gallery.digest}
        attacked = [
            one
            for level in self.plan.levels
            for one in (
                Features(name=level.name, attack=_pgd(level, "last"), recipe=_recipe(level), shown=_PICTURED),
                Features(
                    name=f"{AWARE}{level.name}",
                    attack=_pgd(level, "worst", Evasion(score)),
                    recipe=_recipe(level) | known,
                ),
            )
        ]
        placed = [
            Placed(name=f"place:{of.name}", of=of, gallery=gallery, k=self.plan.config.k, detector=detector)
            for of in (natural, *attacked)
        ]
        threshold = float(detector.threshold) if detector.threshold.isfinite() else None
        every: list[Measurement] = [natural, *attacked, *placed, Classes(gallery=gallery)]
        return self._measure("samples", samples, every, threshold=threshold)

    def followed(self, samples: Split) -> Records:
        """The path of some samples along the attack, their map, and the loss around them."""
        level, config = self.plan.levels[-1], self.plan.config
        path = Path(attack=_pgd(level, "last"), recipe=_recipe(level), at=self.plan.steps)
        every: list[Measurement] = [
            path,
            Restarts(attack=_pgd(level, "fooled"), recipe=_recipe(level), restarts=config.restarts),
            Gaps(threat=level.threat, eps=self.plan.gap_eps, steps=GAP_STEPS),
        ]
        if len(samples) >= LEAST_ON_MAP:
            every.append(Map(of=path, frames=self.plan.frames, seed=self.settings.seed))
        if config.landscape:
            every.append(Surface(threat=level.threat, samples=config.landscape))
        return self._measure("followed", samples, every)


def _pgd(level: Level, keep: Any, loss: Loss = cross_entropy) -> PGD:
    """PGD of a level. With ``keep="last"`` it makes all of its steps: features at the first success would show the
    decision boundary alone."""
    return PGD(threat=level.threat, steps=level.steps, keep=keep, loss=loss)


def _recipe(level: Level) -> dict[str, Any]:
    return {"attack": "pgd", "steps": level.steps}
