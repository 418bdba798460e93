"""A session: a recipe with the folder, the data and the device it works with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from holdfast.data import DataSet, EvaluationSet, Split
from holdfast.evaluation.analyze import Plan, Sets, analyze
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.subject import Subject
from holdfast.recipes.assemble import load_data, load_for
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.analyze import AnalyzeConfig
from holdfast.records.records import Records

Progress = Callable[[str, int, int, str], None]
"""Called with (what is being done, pieces done, pieces in all, a short message)."""


@dataclass(frozen=True)
class Evaluation:
    """What is to be measured: a subject, the samples, the measurements, and the samples between two stored parts."""

    subject: Subject
    samples: Split
    measurements: Sequence[Measurement]
    shard: int


@dataclass(frozen=True)
class Session:
    """A recipe with the folder for results, the data, the device, and where progress is reported.

    ``data_dir`` and ``asked_device`` are what the session was opened with.
    """

    recipe: Recipe
    out: Path
    data: DataSet | EvaluationSet
    fabric: Fabric
    progress: Progress
    data_dir: Path | None = None
    asked_device: str = "auto"

    @staticmethod
    def open(recipe: Recipe, out: Path, data_dir: Path | None, device: str, progress: Progress) -> "Session":
        """Choose the device and load the data."""
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        fabric = _fabric(recipe, device)
        return Session(recipe, out, load_for(recipe, data_dir), fabric, progress, data_dir, device)

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def training_data(self) -> DataSet:
        """The data set with its training part."""
        if not isinstance(self.data, DataSet):
            raise ValueError(f"recipe {self.recipe.name} trains nothing, so its training samples were not loaded")
        return self.data

    @cached_property
    def whole(self) -> DataSet:
        """The data set with its training part, which is loaded now if it was not needed before."""
        if isinstance(self.data, DataSet):
            return self.data
        return load_data(self.recipe.data, self.data_dir)

    def samples(self, many: int | None) -> Split:
        """The test samples: all, or so many spread evenly over the set."""
        return self.data.test.spread(many)

    def evaluate(self, evaluation: "Evaluation") -> Records:
        """Records of a subject; parts that are stored are not computed again."""
        subject = evaluation.subject
        what = ", ".join(filter(None, [f"evaluate {subject.name}", subject.group, f"seed {subject.seed}"]))
        settings, tick = self._settings(evaluation.shard), partial(self.progress, what)
        return evaluate(subject, evaluation.samples, evaluation.measurements, settings, tick)

    def analyze(self, network: Subject) -> None:
        """Look inside a network; parts that are stored are not measured again."""
        recipe, data = self.recipe, self.whole
        assert recipe.threat is not None  # a recipe with networks has one
        config = recipe.analyze or AnalyzeConfig()
        sets = Sets(
            samples=self.samples(config.samples),
            gallery=data.train.spread(config.gallery),
            valid=data.valid.spread(config.gallery),
        )
        tick = partial(self.progress, f"analyze {network.name}, seed {network.seed}")
        analyze(network, sets, Plan(recipe.threat, config), self._settings(recipe.evaluate.shard), tick)

    def _settings(self, shard: int) -> Settings:
        recipe = self.recipe
        return Settings(
            seed=recipe.evaluate.seed,
            shard=shard,
            device=self.device,
            arithmetic=recipe.arithmetic,
            crafting=recipe.crafting,
        )

    def facts(self, name: str, method: str, seed: int, weights: Mapping[str, Any]) -> dict[str, Any]:
        """What records say of a subject beside its measurements."""
        return {
            "model": name,
            "method": method,
            "seed": seed,
            "data": {"name": self.data.name, "digest": self.data.digest},
            "weights": dict(weights),
            "recipe": json_table(self.recipe.table()),
        }


def _fabric(recipe: Recipe, device: str) -> Fabric:
    """The device of this name; certificates need float64, which MPS does not have."""
    if recipe.metrics and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = open_fabric(device)
    if recipe.metrics and fabric.device.type == "mps":
        raise ValueError("device 'mps' has no float64, which certificates need; choose auto, cpu or cuda")
    return fabric


def open_fabric(device: str) -> Fabric:
    """Lightning Fabric on this device; a device that cannot be used here is refused."""
    try:
        return Fabric(accelerator=device, devices=1)
    except (RuntimeError, ValueError, ImportError) as error:
        raise ValueError(f"device {device!r} cannot be used here ({error}); choose auto or cpu") from error
