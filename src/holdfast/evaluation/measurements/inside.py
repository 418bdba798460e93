"""Measurements that build on others: features beside a gallery, points on a map, and what stands for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.analysis.neighborhoods import neighborhoods
from holdfast.analysis.projection import projection
from holdfast.crafting.view import frozen
from holdfast.data import Split
from holdfast.data.split import digest_of
from holdfast.evaluation.measurements.features import Features, Inside, Path, network_of, small
from holdfast.evaluation.measurements.measurement import Before, Result, Shard, joined
from holdfast.evaluation.subject import Subject
from holdfast.losses.latent import class_means
from holdfast.models.classifier import FEATURES, linear_calls
from holdfast.models.detector import Detector
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.records.parts import Part
from holdfast.records.records import Array


@dataclass(frozen=True, eq=False)
class Gallery:
    """Training samples and their features (n, d)."""

    samples: Split
    features: Tensor

    @cached_property
    def digest(self) -> str:
        """Identifies the features and labels."""
        return digest_of(self.features, self.samples.y)

    def images(self, which: Array) -> Array:
        """Small images of the samples at these positions, in the shape of the positions."""
        found: Array = small(self.samples.batch(torch.from_numpy(which).flatten()).x)
        return found.reshape(*which.shape, *found.shape[1:])


@dataclass(frozen=True, kw_only=True)
class _Analyzed(Inside):
    @property
    def code(self) -> tuple[str, ...]:
        """What measures features, and what analyzes them."""
        return (*super().code, "analysis")


@dataclass(frozen=True, kw_only=True)
class Placed(_Analyzed):
    """Where the features of a layer lie among those of a gallery: the nearest samples, (n, 10), the votes of each
    ``k``, (n, k), and the confidence of a detector; and of the samples of which images are stored, those of their
    neighbors too.
    """

    of: Features
    gallery: Gallery
    k: tuple[int, ...]
    detector: Detector
    layer: str = FEATURES
    arrays = frozenset({"nearest", "votes", "score", "retrieved", "retrieved_y"})

    @property
    def after(self) -> tuple[str, ...]:
        """The measurement of the features."""
        return (self.of.name,)

    @property
    def settings(self) -> Any:
        """The features, the gallery, which also determines the detector, and k."""
        return [self.name, self.of.settings, self.gallery.digest, list(self.k)]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """The neighbors and the confidence of the samples of a shard."""
        part, known = before[self.of.name][shard.number], self.gallery
        features, gallery_y = part[f"features:{self.layer}"], known.samples.y.numpy()
        found = neighborhoods(features, shard.samples.y.numpy(), known.features.numpy(), gallery_y, k=self.k)
        with torch.no_grad():
            score = self.detector.score(torch.from_numpy(features).to(self.detector.means)).cpu().numpy()
        shown = found.nearest[: len(part["images"])]
        return {
            "nearest": found.nearest.astype(np.int32),
            "votes": found.votes,
            "score": score,
            "retrieved": known.images(shown),
            "retrieved_y": gallery_y[shown],
        }


@dataclass(frozen=True, kw_only=True)
class Map(_Analyzed):
    """Positions on a t-SNE map of the clean samples of a path, (n, points, 2), the other points placed on it.

    It needs all samples at once, so the evaluation must have them in one shard.
    """

    name: str = "map"
    of: Path
    frames: tuple[int, ...]
    seed: int
    arrays = frozenset({"map", "faithful"})

    @property
    def after(self) -> tuple[str, ...]:
        """The measurement whose points the map shows."""
        return (self.of.name,)

    @property
    def settings(self) -> Any:
        """The path, its points on the map, and the seed."""
        return [self.of.settings, list(self.frames), self.seed]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Make the map; ``faithful`` says which clean samples keep their nearest neighbor on it."""
        natural, *moved = np.moveaxis(joined(before[self.of.name], "features")[:, self.frames], 1, 0)
        found = projection(natural, np.concatenate(moved), perplexity=min(15.0, (len(natural) - 1) / 3), seed=self.seed)
        placed = found.placed.reshape(len(moved), *found.natural.shape)
        places = np.concatenate([found.natural[None], placed]).astype(np.float32)
        return {"map": np.moveaxis(places, 0, 1), "faithful": np.array([found.faithful.successes])}


@dataclass(frozen=True, kw_only=True)
class Classes(_Analyzed):
    """What stands for each class: the mean features of the gallery, (classes, d), and the weight vectors of the last
    linear layer that runs, those of a hypersphere head as it uses them. ``weight`` is empty if no such layer runs.
    """

    name: str = "classes"
    gallery: Gallery
    arrays = frozenset({"mean", "weight"})

    @property
    def settings(self) -> Any:
        """A digest of the gallery."""
        return self.gallery.digest

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Average the gallery, and run one sample to see the last linear layer."""
        x, model, known = shard.batch().x[:1], network_of(subject), self.gallery
        with torch.no_grad(), frozen(model, shard.rng.fork("features")) as view, linear_calls(model) as calls:
            view(x)
        weight = _vectors(calls[-1].layer).cpu().numpy() if calls else np.zeros((0, 0), np.float32)
        mean = class_means(known.features, known.samples.y, int(known.samples.y.max()) + 1)
        return {"mean": mean.numpy(), "weight": weight}

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The two arrays, once."""
        result.arrays |= {f"{key}:{self.name}": parts[0][key] for key in ("mean", "weight")}


def _vectors(layer: torch.nn.Linear) -> Tensor:
    directions = layer.directions() if isinstance(layer, Hypersphere) else layer.weight
    return directions.detach().float()
