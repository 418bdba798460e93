"""What features do under attack: the analyses of one network, computed from the records of its measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.analysis.detection import Detection, Rejection, detection, rejection
from holdfast.analysis.drift import Drift, drift
from holdfast.analysis.head import Head, head
from holdfast.analysis.landscape import Landscape, landscape
from holdfast.analysis.linearity import Linearity, linearity
from holdfast.analysis.neighborhoods import Neighborhoods
from holdfast.analysis.projection import Projection, projection
from holdfast.analysis.separation import Separation, separation
from holdfast.analysis.strength import Strength, strength
from holdfast.evaluation.analyze import AWARE, FOLDER, NATURAL, place_name
from holdfast.evaluation.measurements.features import features_name, label_name
from holdfast.geometry import eps_text
from holdfast.models.classifier import FEATURES, LOGITS
from holdfast.records.records import Array, Mask, Records
from holdfast.statistics import Estimate, Share


@dataclass(frozen=True, eq=False)
class Analysis:
    """What the features of one network do under attack; every property is computed when it is asked for.

    ``samples`` are the records of the samples that are attacked, ``followed`` those of the samples that are followed
    along the attack.
    """

    samples: Records
    followed: Records

    @staticmethod
    def load(folder: Path) -> "Analysis | None":
        """The analysis in the folder of a network; None if there is none."""
        inside = folder / FOLDER
        if not (inside / "followed" / "records" / "facts.json").is_file():  # written last
            return None
        return Analysis(*(Records.load(inside / name / "records") for name in ("samples", "followed")))

    @property
    def facts(self) -> Mapping[str, Any]:
        """How it was measured: the attacks, the numbers of neighbors, the steps of the path."""
        found: Mapping[str, Any] = self.samples.facts["analyze"]
        return found

    @cached_property
    def under(self) -> tuple["Under", ...]:
        """The analyses under each attack, the largest eps last."""
        return tuple(Under(self, one["name"], one["eps"], one["steps"]) for one in self.facts["levels"])

    @property
    def y(self) -> Array:
        """The labels of the samples."""
        return self.samples.columns["y"]

    @property
    def clean(self) -> Share:
        """Accuracy without attack."""
        return Share.of(self.samples.correct)

    @property
    def natural(self) -> Array:
        """The features of the samples, (n, d)."""
        return self.samples.arrays[features_name(NATURAL)]

    @cached_property
    def neighbors(self) -> Neighborhoods:
        """The nearest gallery samples without attack."""
        return self.neighbors_of(NATURAL)

    def neighbors_of(self, name: str, layer: str = FEATURES) -> Neighborhoods:
        """The nearest gallery samples of the features that a measurement found in a layer."""
        votes, nearest = (self.samples.arrays[f"{kind}:{place_name(name, layer)}"] for kind in ("votes", "nearest"))
        return Neighborhoods.of(self.facts["k"], votes, nearest, self.y)

    @cached_property
    def drift(self) -> Drift:
        """The movement of the followed samples."""
        path, means = self.followed.arrays["features:path"], self.samples.arrays["mean:classes"]
        return drift(np.moveaxis(path, 0, 1), self.followed.columns["y"], means)

    @property
    def steps(self) -> Sequence[int]:
        """The steps at which the drift is known, the clean sample first."""
        found: Sequence[int] = self.facts["path"]["steps"]
        return found

    @cached_property
    def along_steps(self) -> Strength:
        """Accuracy of the followed samples against the steps of the attack."""
        wrong = self.followed.arrays["label:path"] != self.followed.columns["y"][:, None]
        first = np.where(wrong.any(1), np.array(self.steps)[wrong.argmax(1)], np.inf)
        return strength(first, self.followed.columns["y"], self.steps)

    @cached_property
    def along_restarts(self) -> Strength:
        """Accuracy of the followed samples against the restarts of the attack."""
        first = self.followed.arrays["first:restarts"]
        return strength(first, self.followed.columns["y"], range(self.facts["restarts"] + 1))

    @cached_property
    def head(self) -> Head | None:
        """Lengths and angles at the last layer; None if the features are not its input."""
        weight, logits = self.samples.arrays["weight:classes"], self.samples.arrays[features_name(NATURAL, LOGITS)]
        if self.facts["layer"] is not None or weight.shape != (logits.shape[1], self.natural.shape[1]):
            return None
        return head(self.natural, self.y, weight, logits)

    @cached_property
    def landscape(self) -> Landscape | None:
        """The loss over two random directions; None if it was not measured."""
        losses = self.followed.arrays.get("losses:surface")
        if losses is None:
            return None
        eps = self.facts["levels"][-1]["eps"]
        return landscape(losses, np.linspace(-eps, eps, losses.shape[1]))

    @cached_property
    def linearity(self) -> Linearity:
        """The linearity gap over eps and steps."""
        gaps, facts = self.followed.arrays["gaps:gaps"], self.facts["gaps"]
        return linearity(np.moveaxis(gaps, 0, 2), facts["eps"], facts["steps"])

    @property
    def places(self) -> Array | None:
        """Positions of the followed samples on the map, (n, frames, 2); None if they are too few for one."""
        return self.followed.arrays.get("map:map")

    @property
    def faithful(self) -> Share:
        """The share of samples whose nearest neighbor is among their ten nearest on the map."""
        return Share(int(self.followed.arrays["faithful:map"][0]), len(self.followed))

    def numbers(self) -> dict[str, Estimate]:
        """The numbers of the analysis by names such as "r at 8/255", "50-NN at 0.3" and "AUC at 0.3, aware attack"."""
        found = {
            f"{k}-NN": _estimate(share) for k, share in zip(self.neighbors.k, self.neighbors.accuracy, strict=True)
        }
        for under in self.under:
            at = f"at {eps_text(under.eps)}"
            found |= {f"r {at}": under.separation.r.average, f"r' {at}": under.separation.r_prime.average}
            near = zip(under.neighbors.k, under.neighbors.accuracy, strict=True)
            found |= {f"{k}-NN {at}": _estimate(share) for k, share in near}
            found |= {f"AUC {at}": under.detection.auc, f"AUC {at}, aware attack": under.detection_aware.auc}
        return found | ({} if self.landscape is None else {"curvature": self.landscape.curvature})

    def projection(self, *, perplexity: float = 15.0, iterations: int = 500, seed: int = 0) -> Projection:
        """A t-SNE map of all natural features with those under the strongest attack placed on it."""
        moved = self.under[-1].features
        return projection(self.natural, moved, perplexity=perplexity, iterations=iterations, seed=seed)


def _estimate(share: Share) -> Estimate:
    return Estimate(share.value, share.low, share.high, share.n)


@dataclass(frozen=True, eq=False)
class Under:
    """The analyses under one attack, PGD with ``steps`` steps at ``eps``."""

    of: Analysis
    name: str
    eps: float
    steps: int

    @property
    def features(self) -> Array:
        """The features after the attack, (n, d)."""
        return self.of.samples.arrays[features_name(self.name)]

    @property
    def labels(self) -> Array:
        """The predicted classes after the attack."""
        return self.of.samples.arrays[label_name(self.name)]

    @property
    def accuracy(self) -> Share:
        """Accuracy under the attack."""
        return Share.of(self.labels == self.of.y)

    @property
    def accuracy_aware(self) -> Share:
        """Accuracy under the attack that knows the detector."""
        return Share.of(~self._wrong(f"{AWARE}{self.name}"))

    @cached_property
    def separation(self) -> Separation:
        """The ratios r and r'."""
        return separation(self.of.natural, self.of.y, self.features, self.labels)

    @cached_property
    def neighbors(self) -> Neighborhoods:
        """The nearest gallery samples after the attack."""
        return self.of.neighbors_of(self.name)

    @cached_property
    def detection(self) -> Detection:
        """Detection of misclassified samples, natural and attacked together, as in Figure 5 of Mao et al. (2019)."""
        return self.detection_of(self.name)

    @cached_property
    def detection_aware(self) -> Detection:
        """The same under the attack that knows the detector."""
        return self.detection_of(f"{AWARE}{self.name}")

    @cached_property
    def rejection(self) -> Rejection | None:
        """Accuracy with rejection under the attack that knows the detector; None if there is no threshold."""
        threshold, aware = self.of.facts["threshold"], f"{AWARE}{self.name}"
        if threshold is None:
            return None
        pairs = [(self._score(name), self._wrong(name)) for name in (NATURAL, aware)]
        return rejection(threshold, *pairs[0], *pairs[1])

    @cached_property
    def layers(self) -> Mapping[str, "Layer"]:
        """The further layers that were measured, in the order in which they were named."""
        return {layer: Layer(self, layer) for layer in self.of.facts.get("layers", ())}

    def detection_of(self, name: str, layer: str = FEATURES) -> Detection:
        """Detection among the natural samples and those that a measurement attacked, by the densities in a layer."""
        scores = np.concatenate([self._score(one, layer) for one in (NATURAL, name)])
        wrong = np.concatenate([self._wrong(one) for one in (NATURAL, name)])
        return detection(scores, wrong, np.tile(self.of.samples.columns["index"], 2))

    def _score(self, name: str, layer: str = FEATURES) -> Array:
        return self.of.samples.arrays[f"score:{place_name(name, layer)}"]

    def _wrong(self, name: str) -> Mask:
        return np.asarray(self.of.samples.arrays[label_name(name)] != self.of.y)


@dataclass(frozen=True, eq=False)
class Layer:
    """The analyses of a further layer under one attack, which does not know a detector."""

    under: Under
    name: str

    @property
    def natural(self) -> Array:
        """The features without attack, (n, d)."""
        return self.under.of.samples.arrays[features_name(NATURAL, self.name)]

    @property
    def features(self) -> Array:
        """The features after the attack, (n, d)."""
        return self.under.of.samples.arrays[features_name(self.under.name, self.name)]

    @cached_property
    def separation(self) -> Separation:
        """The ratios r and r'."""
        return separation(self.natural, self.under.of.y, self.features, self.under.labels)

    @property
    def ratios(self) -> Separation | None:
        """The same, None where the features of a class all have one direction."""
        try:
            return self.separation
        except ValueError:
            return None

    @cached_property
    def neighbors_clean(self) -> Neighborhoods:
        """The nearest gallery samples without attack."""
        return self.under.of.neighbors_of(NATURAL, self.name)

    @cached_property
    def neighbors(self) -> Neighborhoods:
        """The nearest gallery samples after the attack."""
        return self.under.of.neighbors_of(self.under.name, self.name)

    @cached_property
    def detection(self) -> Detection:
        """Detection of misclassified samples, natural and attacked together."""
        return self.under.detection_of(self.under.name, self.name)

    def __repr__(self) -> str:
        return f"layer {self.name}: {self.separation}; {self.neighbors}; detection {self.detection.auc}"
