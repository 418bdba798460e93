"""Measurements of what is inside a network: the features of samples, and their path along an attack.

They fill named arrays of records; the functions in ``holdfast.analysis`` turn those into numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from holdfast.contracts import Attack, Batch, Cost, Model, Rows
from holdfast.crafting.view import frozen
from holdfast.data import Split
from holdfast.evaluation.judge import CHUNK, attack_and_judge, float32
from holdfast.evaluation.measurements.measurement import Arrays, Before, OfItsShard, Result, Shard, joined
from holdfast.evaluation.subject import Subject
from holdfast.models.classifier import FEATURES, layer_features
from holdfast.records.parts import Part
from holdfast.rng import Rng

_LARGEST = 1 << 31  # bytes of features that a part may hold
_THUMBNAIL = 64  # pixels to a side; larger images are stored reduced


def features_name(measurement: str, layer: str = FEATURES) -> str:
    """The name of the array with the features of a layer."""
    return f"features:{layer}:{measurement}"


def label_name(measurement: str) -> str:
    """The name of the array with the predicted labels."""
    return f"label:{measurement}"


@dataclass(frozen=True, kw_only=True)
class Inside(OfItsShard):
    """A measurement whose arrays are joined over the shards and named after it."""

    name: str
    shard: int | None = None

    @property
    def after(self) -> tuple[str, ...]:
        """It reads the results of no other measurement."""
        return ()

    @property
    def code(self) -> tuple[str, ...]:
        """What runs and attacks a network."""
        return ("losses", "models", "crafting", "data", "attacks", "evaluation")

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The arrays of all shards, each with the name of the measurement."""
        for key in parts[0]:
            if parts[0][key].ndim:  # not the seconds of a part
                result.arrays[f"{key}:{self.name}"] = joined(parts, key)


@dataclass(frozen=True, kw_only=True)
class Features(Inside):
    """Features of layers and predicted labels of samples: clean, or under an attack on every sample.

    A layer is the name of a module or ``"features"``, the features of the model; all come from one forward pass. Where
    the attack returns a point outside its threat, the clean sample takes its place. Small images of the first ``shown``
    points are stored too.
    """

    layers: tuple[str, ...] = (FEATURES,)
    attack: Attack | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    shown: int = 0

    @property
    def settings(self) -> Any:
        """The layers and the attack."""
        threat = None if self.attack is None else str(self.attack.threat)
        return [self.name, list(self.layers), dict(self.recipe), threat, self.shown]

    @property
    def arrays(self) -> frozenset[str]:
        """The features of each layer, the labels and the images."""
        return frozenset({"label", "images", *(f"features:{layer}" for layer in self.layers)})

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """The features of a shard."""
        model, batch = network_of(subject), shard.batch()
        x = batch.x
        if self.attack is not None:
            rng = shard.rng.fork("features")
            x_adv, verdict = attack_and_judge(model, self.attack, x, batch.rows(), rng=rng, judge_rng=rng.fork("judge"))
            x = torch.where(verdict.inside.reshape(-1, *[1] * (x.ndim - 1)), x_adv, x)
        many = self.shown if shard.number == 0 else 0
        return measured(model, x, self.layers, shard.rng) | {"images": small(x[:many])}


@dataclass(frozen=True, kw_only=True)
class Path(Inside):
    """Features and predicted labels of samples along an attack, (n, points, ...): first the clean sample, then the
    point after each step, or after the steps ``at``; and small images of the first and the last point.

    The attack has to make the same number of steps for every sample, as PGD with ``keep="last"`` does.
    """

    name: str = "path"
    attack: Attack
    recipe: Mapping[str, Any]
    at: tuple[int, ...] | None = None
    shard: int | None = 50  # the points of a shard are held at once
    arrays = frozenset({"features", "label"})

    @property
    def settings(self) -> Any:
        """The attack, and the steps that are kept."""
        return [self.name, dict(self.recipe), str(self.attack.threat), self.at and list(self.at)]

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Attack with a watch that keeps the points."""
        model, batch, seen = network_of(subject), shard.batch(), _Seen(self.at)
        last = self.attack(model, batch.x, batch.rows(), rng=shard.rng.fork("path"), watch=seen)
        points = seen.along(batch, last)
        flat = measured(model, points.flatten(0, 1), (FEATURES,), shard.rng)
        kept = {"features": flat[f"features:{FEATURES}"], "label": flat["label"]}
        whole = {key: value.reshape(*points.shape[:2], *value.shape[1:]) for key, value in kept.items()}
        return whole | {key: small(points[:, end]) for key, end in (("clean", 0), ("moved", -1)) if points.ndim == 5}


class _Seen:
    """A watch that keeps the points of each sample after the steps ``at``, or after every step."""

    def __init__(self, at: tuple[int, ...] | None) -> None:
        self.at = at
        self.points: dict[int, list[Tensor]] = {}
        self.passes: dict[int, int] = {}

    def __call__(self, rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        for index, point in zip(rows.index.tolist(), x_adv, strict=True):
            step = self.passes.get(index, 0)  # the first pass sees the starting point
            self.passes[index] = step + 1
            if step and (self.at is None or step in self.at):
                self.points.setdefault(index, []).append(point.detach().float().clone())

    def along(self, batch: Batch, last: Tensor) -> Tensor:
        """(n, points, ...) the clean samples and the kept points; the starting points are left out."""
        steps = sorted(set(self.passes.values()))
        if len(steps) > 1:
            raise ValueError(
                f"the attack made {steps[0]} to {steps[-1]} steps but a path needs as many for every sample; use an "
                'attack without restarts and with keep="last"'
            )
        each = zip(batch.x, batch.index.tolist(), last, strict=True)
        ended = self.at is None or steps[-1] in self.at
        return torch.stack(
            [torch.stack([clean, *self.points.get(i, []), *([end] if ended else [])]) for clean, i, end in each]
        )


def small(x: Tensor) -> NDArray[Any]:
    """(n, c, h, w) images as whole levels 0..255, reduced to at most 64 pixels to a side; any others as no images."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return np.zeros((len(x), 0), np.uint8)
    scale = max(1, -(-max(x.shape[2:]) // _THUMBNAIL))
    reduced: Tensor = functional.avg_pool2d(x.float(), scale, ceil_mode=True) if scale > 1 else x
    levels: NDArray[Any] = (255 * reduced.clamp(0, 1)).round().to(torch.uint8).cpu().numpy()
    return levels


def network_of(subject: Subject) -> nn.Module:
    """The network of a subject; a classifier without one is refused."""
    if subject.model is None:
        raise ValueError(f"{subject.name} has no network, so it has no features to analyze; leave it out")
    return subject.model


@torch.no_grad()
def measured(model: nn.Module, x: Tensor, layers: Sequence[str], rng: Rng) -> Arrays:
    """Features of these layers and labels, computed in float32."""
    with float32(), frozen(model, rng.fork("features")) as view:
        pieces = list(_pieces(view, x, layers))
    found: Arrays = {f"features:{layer}": np.concatenate([piece[layer] for piece, _ in pieces]) for layer in layers}
    return found | {"label": np.concatenate([label for _, label in pieces])}


def _pieces(view: Model, x: Tensor, layers: Sequence[str]) -> Iterator[tuple[Arrays, Any]]:
    for part in torch.split(x.float(), CHUNK):
        features, logits = layer_features(view, part, layers)
        size = sum(value[0].numel() for value in features.values()) * 4 * len(x)
        if size > _LARGEST:
            raise ValueError(
                f"the features of {len(x)} points in the layers {', '.join(layers)} take {size / (1 << 30):.1f} GiB; "
                "choose smaller layers or smaller parts"
            )
        yield {layer: value.float().cpu().numpy() for layer, value in features.items()}, logits.argmax(1).cpu().numpy()
