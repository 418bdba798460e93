"""Nearest-neighbor classifiers under the metrics of a recipe, as subjects."""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from holdfast.certify.neighbors import Neighbors
from holdfast.data import Split
from holdfast.data.split import digest_of
from holdfast.evaluation.measurements.attack import Clean
from holdfast.evaluation.measurements.certificate import Certified
from holdfast.evaluation.subject import Subject
from holdfast.evaluation.suite import Attacks, attack_measurements
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.recipes.tables.certify import CertifyConfig, MetricConfig
from holdfast.records.parts import Part, Parts, made, seconds
from holdfast.records.provenance import code_version
from holdfast.rng import Rng
from holdfast.run.session import Evaluation, Session

FITTED = "metrics"  # the folder of fitted metrics


def folder_of(out: Path, metric: str, k: int, seed: int) -> Path:
    """Where the records of one metric and number of neighbors are stored."""
    return out / metric / f"k-{k}" / f"seed-{seed}"


def group_of(k: int) -> str:
    """The name of a number of neighbors on the page."""
    return f"K = {k}"


def black_box_attacks(recipe: Recipe) -> Attacks:
    """The attacks of a recipe if all of them run on nearest neighbors, which have no gradients; else none of them."""
    attacks = {name: it for name, it in recipe.attacks.items() if not isinstance(it, TransferConfig) and it.black_box}
    if len(attacks) < len(recipe.attacks):
        return {}
    return {name: (attack, json_table(attack)) for name, attack in attacks.items()}


@dataclass(frozen=True)
class Metrics:
    """The metrics of [metrics], fitted on training samples, each with every number of neighbors."""

    session: Session

    @property
    def config(self) -> CertifyConfig:
        """The [certify] table of the recipe."""
        assert self.session.recipe.certify is not None  # a recipe with metrics has it
        return self.session.recipe.certify

    def prepare(self, metric: str, seed: int) -> None:
        """Fit the metric unless it is stored; settings that cannot be certified are refused first."""
        train = self._train()
        self._classifiers(train)
        self._fit(metric, seed, train)

    def networks(self, metric: str, seed: int) -> Iterator[Subject]:
        """Nearest neighbors are no networks."""
        yield from ()

    def evaluations(self, metric: str, seed: int) -> Iterator[Evaluation]:
        """The certificates of one metric, for every number of neighbors."""
        train = self._train()
        fitted = self._fit(metric, seed, train)
        matrix = torch.from_numpy(fitted["components"].T @ fitted["components"])
        weights = {"kept": None, "digest": digest_of(torch.from_numpy(fitted["components"]))}
        learner = self.session.recipe.metrics[metric].learner
        facts = self.session.facts(metric, learner, seed, weights)
        facts["training"] = {
            "seconds": seconds(fitted),
            "warnings": json.loads(str(fitted["warnings"])),
            "made": [made(fitted)],
        }
        config, samples = self.config, self.session.samples(self.config.samples)
        for k, classifier in self._classifiers(train).items():
            certifier = replace(classifier, matrix=matrix)
            subject = Subject(
                name=metric,
                seed=seed,
                group=group_of(k),
                digest=f"{digest_of(matrix, train.x, train.y)} {k}",
                folder=folder_of(self.session.out, metric, k, seed),
                facts=facts | {"group": group_of(k)},
                predict=_predict(certifier),
                dtype=torch.float64,
                parts=self.session.out / "parts",  # a metric without randomness is the same for all seeds
            )
            recipe = {"k": k, "near": config.near, "box": config.box}
            certificate = Certified(name="neighbors", certifier=certifier, recipe=recipe)
            attacks = attack_measurements(
                black_box_attacks(self.session.recipe), classes=len(self.session.training_data.classes)
            )
            yield Evaluation(subject, samples, [Clean(), certificate, *attacks], config.shard)

    def _train(self) -> Split:
        """All training samples, including those held out for validation, in the order of the file."""
        data = self.session.training_data
        parts = (data.train, data.valid)
        index = torch.cat([part.index for part in parts])
        order = index.argsort()
        x, y = (torch.cat([getattr(part, name) for part in parts])[order] for name in ("x", "y"))
        return Split(x, y, index[order])

    def _classifiers(self, train: Split) -> dict[int, Neighbors]:
        """The classifiers by number of neighbors, without a metric, checked against the samples."""
        config, (x, y) = self.config, _inputs(train, self.session.device)
        classifiers = {k: Neighbors(points=x, labels=y, k=k, near=config.near, box=config.box) for k in config.k}
        for classifier in classifiers.values():
            classifier.check(_inputs(self.session.samples(config.samples), self.session.device)[0])
        return classifiers

    def _fit(self, metric: str, seed: int, train: Split) -> Part:
        """The fitted metric, from the cache if possible; a deterministic learner is fitted once for all seeds."""
        config = self.session.recipe.metrics[metric]
        train = train if self.config.fit is None else train.spread(self.config.fit)
        settings = [config.learner, json_table(config.settings), seed if config.seeded else None]
        key = ["metric", settings, digest_of(train.x, train.y)]
        code = code_version("learners")
        cache = Parts(self.session.out / FITTED)
        return cache.get(key, code, {"components", "warnings"}, lambda: self._fitted(config, metric, seed, train))

    def _fitted(self, config: MetricConfig, metric: str, seed: int, train: Split) -> Part:
        (x, y), what, progress = _inputs(train), f"fit {metric}, seed {seed}", self.session.progress
        learner = config.make(
            seed,
            str(self.session.device),
            lambda step, loss: progress(what, min(step, most - 1), most, f"{loss:.4g}"),
        )
        most = int(learner.get_params().get("max_iter", 1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ConvergenceWarning)
            learner.fit(x.flatten(1).numpy(), y.numpy())
        progress(what, most, most, "")
        messages = [" ".join(str(warning.message).split()) for warning in caught]
        return {
            "components": np.asarray(learner.components_, dtype=np.float64),
            "warnings": np.array(json.dumps(list(dict.fromkeys(messages)))),
        }


def _predict(neighbors: Neighbors) -> Callable[[Tensor, Rng], Tensor]:
    return lambda x, rng: neighbors.predict(x)


def _inputs(split: Split, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    batch = split.batch(torch.arange(len(split)), device or "cpu", torch.float64)
    return batch.x, batch.y
