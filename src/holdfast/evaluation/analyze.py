"""A look inside a network: its features under attack and the loss around samples, measured as any evaluation is."""

from collections.abc import Mapping, Sequence
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
from holdfast.records.records import Array, Records

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
        } | ({"layers": list(self.config.layers)} if self.config.layers else {})


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
    known = work.known(sets.gallery)
    detector = known[FEATURES].detector
    if sets.valid is not None:
        detector.calibrate(work.right(sets.valid), plan.config.fpr)
    save_detector(detector, work.folder / "detector.safetensors")
    found = work.samples(sets.samples, known)
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
class Known:
    """The gallery in one layer, and the detector that was fitted to it."""

    gallery: Gallery
    detector: Detector


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

    def known(self, samples: Split) -> dict[str, Known]:
        """The gallery in each layer."""
        layers = (FEATURES, *self.plan.config.layers)
        found = self._measure("gallery", samples, [Features(name=NATURAL, layers=layers)])
        each = {layer: _tensor(found.arrays[features_name(NATURAL, layer)]) for layer in layers}
        return {layer: self._fitted(Gallery(samples, features), layer) for layer, features in each.items()}

    def _fitted(self, gallery: Gallery, layer: str) -> Known:
        name = self.plan.config.layer if layer == FEATURES else layer
        return Known(gallery, Detector.fit(gallery.features, gallery.samples.y, name).to(self.settings.device))

    def right(self, samples: Split) -> Tensor:
        """Features of the clean samples that are classified correctly."""
        found = self._measure("valid", samples, [Features(name=NATURAL)])
        return _tensor(found.arrays[features_name(NATURAL)])[_tensor(found.arrays[label_name(NATURAL)]) == samples.y]

    def samples(self, samples: Split, known: Mapping[str, Known]) -> Records:
        """Features before and after each attack and their places in the gallery, logits, and class weights."""
        gallery, detector, further = known[FEATURES].gallery, known[FEATURES].detector, self.plan.config.layers
        natural = Features(name=NATURAL, layers=(FEATURES, LOGITS, *further), shown=_PICTURED)
        attacked = [
            Features(
                name=level.name,
                layers=(FEATURES, *further),
                attack=_pgd(level, "last"),
                recipe=_recipe(level),
                shown=_PICTURED,
            )
            for level in self.plan.levels
        ]
        aware = [
            Features(
                name=f"{AWARE}{level.name}",
                attack=_pgd(level, "worst", Evasion(detector.score)),
                recipe=_recipe(level) | {"detector": gallery.digest},
            )
            for level in self.plan.levels
        ]
        placed = [self._placed(of, known[FEATURES]) for of in (natural, *attacked, *aware)]
        placed += [self._placed(of, known[layer], layer) for layer in further for of in (natural, *attacked)]
        threshold = float(detector.threshold) if detector.threshold.isfinite() else None
        every: list[Measurement] = [natural, *attacked, *aware, *placed, Classes(gallery=gallery)]
        return self._measure("samples", samples, every, threshold=threshold)

    def _placed(self, of: Features, known: Known, layer: str = FEATURES) -> Placed:
        name, k = place_name(of.name, layer), self.plan.config.k
        return Placed(name=name, of=of, gallery=known.gallery, k=k, detector=known.detector, layer=layer)

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


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(values.copy())  # torch takes no arrays that cannot be written


def place_name(measurement: str, layer: str = FEATURES) -> str:
    """The name of the measurement of where the features of a layer lie in the gallery."""
    return f"place:{measurement}" if layer == FEATURES else f"place:{measurement} {layer}"


def _pgd(level: Level, keep: Any, loss: Loss = cross_entropy) -> PGD:
    """PGD of a level. With ``keep="last"`` it makes all of its steps: features at the first success would show the
    decision boundary alone."""
    return PGD(threat=level.threat, steps=level.steps, keep=keep, loss=loss)


def _recipe(level: Level) -> dict[str, Any]:
    return {"attack": "pgd", "steps": level.steps}
