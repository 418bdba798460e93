"""Certificates of a recipe: fit what is missing, certify in parts that survive a stop, record, report."""

import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from holdfast.certify.neighbors import Neighbors
from holdfast.data import DataSet, Split
from holdfast.data.split import digest_of
from holdfast.members import unknown
from holdfast.recipes import toml
from holdfast.recipes.assemble import load_data
from holdfast.recipes.build import json_table
from holdfast.recipes.certificate import CertificateRecipe, MetricPlan
from holdfast.records.records import Records
from holdfast.records.stored import read_arrays, write_arrays
from holdfast.report.page import write_page
from holdfast.report.sections import study_page
from holdfast.report.study import Run, Study
from holdfast.rng import Rng
from holdfast.run.study import commit, open_fabric, versions

Progress = Callable[[str, int, int, str], None]
Stored = dict[str, NDArray[Any]]

_FITTED = frozenset({"components", "seconds", "warnings"})
_PART = frozenset({"label", "radius", "upper", "seconds"})


@dataclass(frozen=True, eq=False)
class Desk:
    """A recipe for certificates with its data, and where results go."""

    recipe: CertificateRecipe
    out: Path
    data: DataSet
    device: torch.device
    progress: Progress

    @staticmethod
    def open(recipe: CertificateRecipe, out: Path, data_dir: Path | None, device: str, progress: Progress) -> "Desk":
        """Load the data and pick the device."""
        chosen = _device(device)
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        for folder in ("metrics", "parts"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        return Desk(recipe, out, load_data(recipe.data, data_dir), chosen, progress)

    def chosen(self, metric: str | None, seed: int | None) -> list[tuple[str, int]]:
        """The fits meant: all of the recipe, or one metric, or one seed."""
        if metric is not None and metric not in self.recipe.metrics:
            raise ValueError(unknown(f"metric {metric!r}", metric, self.recipe.metrics))
        if seed is not None and seed not in self.recipe.seeds:
            known = ", ".join(map(str, self.recipe.seeds))
            raise ValueError(f"seed {seed} is not in the recipe ({known}); add it with --set 'seeds=[...]'")
        metrics = [name for name in self.recipe.metrics if metric in (None, name)]
        return [(name, s) for name in metrics for s in self.recipe.seeds if seed in (None, s)]

    def training(self) -> Split:
        """All training samples in the order of the file: nothing is selected here, so none is held out."""
        parts = (self.data.train, self.data.valid)
        index = torch.cat([part.index for part in parts])
        order = index.argsort()
        return Split(
            torch.cat([part.x for part in parts])[order], torch.cat([part.y for part in parts])[order], index[order]
        )

    def certify(self, metric: str, seed: int) -> None:
        """Records of one fitted metric, for every number of neighbours."""
        train, plan = self.training(), self.recipe.certify
        samples = self.data.test.spread(plan.samples)
        subjects = self.subjects(train, samples)  # before the fit, which may take minutes: what does not fit is refused
        fitted = self.fit(metric, seed, train)
        matrix = torch.from_numpy(fitted["components"].T @ fitted["components"])
        for k, subject in subjects.items():
            identity = [digest_of(matrix, train.x, train.y), k, plan.near, plan.box]
            words = f"certify {metric}, K = {k}, seed {seed}"
            parts = list(self._parts(replace(subject, matrix=matrix), samples, identity, words))
            self._records(metric, k, seed, samples, fitted, parts).save(self.folder(metric, k, seed))

    def subjects(self, train: Split, samples: Split) -> dict[int, Neighbors]:
        """The classifiers by their number of neighbours, with no metric yet; all of them can take the samples."""
        plan, (x, y) = self.recipe.certify, _inputs(train, self.device)
        found = {k: Neighbors(points=x, labels=y, k=k, near=plan.near, box=plan.box) for k in plan.k}
        for subject in found.values():
            subject.check(_inputs(samples, self.device)[0])
        return found

    def folder(self, metric: str, k: int, seed: int) -> Path:
        """Where the records of one metric and classifier lie."""
        return records_folder(self.out, metric, k, seed)

    def fit(self, metric: str, seed: int, train: Split) -> Stored:
        """The fitted metric, from disk where it was fitted before; one without randomness is fitted once."""
        plan = self.recipe.metrics[metric]
        settings = [plan.learner, json_table(plan.settings), seed if plan.seeded else None]
        key = _key(["metric", settings, digest_of(train.x, train.y)])
        path = self.out / "metrics" / f"{key}.npz"
        stored = read_arrays(path, _FITTED)
        if stored is None:
            stored = self._fitted(plan, seed, train, f"fit {metric}, seed {seed}")
            write_arrays(path, stored)
        return stored

    def _fitted(self, plan: MetricPlan, seed: int, train: Split, words: str) -> Stored:
        x, y = _inputs(train)
        learner = plan.make(
            seed,
            str(self.device),
            lambda step, loss: self.progress(words, min(step, most - 1), most, f"{loss:.4g}"),
        )
        most = int(learner.get_params().get("max_iter", 1))
        started = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ConvergenceWarning)
            learner.fit(x.flatten(1).numpy(), y.numpy())
        seconds = time.perf_counter() - started
        self.progress(words, most, most, "")
        said = [" ".join(str(warning.message).split()) for warning in caught]
        return {
            "components": np.asarray(learner.components_, dtype=np.float64),
            "seconds": np.array(seconds),
            "warnings": np.array(json.dumps(list(dict.fromkeys(said)))),
        }

    def _parts(self, subject: Neighbors, samples: Split, identity: list[Any], words: str) -> Iterator[Stored]:
        shards = torch.split(torch.arange(len(samples)), self.recipe.certify.shard)
        for number, which in enumerate(shards):
            shard = samples.take(which)
            path = self.out / "parts" / f"{_key(['part', identity, digest_of(shard.x)])}.npz"
            part = read_arrays(path, _PART)
            if part is None:
                started = time.perf_counter()
                found = subject(_inputs(shard, self.device)[0], rng=Rng(0))
                part = {name: getattr(found, name).cpu().numpy() for name in ("label", "radius", "upper")}
                part["seconds"] = np.array(time.perf_counter() - started)
                write_arrays(path, part)
            self.progress(words, number + 1, len(shards), "")
            yield part

    def _records(self, metric: str, k: int, seed: int, samples: Split, fitted: Stored, parts: list[Stored]) -> Records:
        joined = {name: np.concatenate([part[name] for part in parts]) for name in ("label", "radius", "upper")}
        columns = {"index": samples.index.numpy(), "y": samples.y.numpy(), "label": joined["label"]}
        columns |= {"radius:l2:neighbors": joined["radius"], "upper:l2:neighbors": joined["upper"]}
        plan = self.recipe.certify
        seconds = sum(float(part["seconds"]) for part in parts)
        facts = {
            "model": metric,
            "method": self.recipe.metrics[metric].learner,
            "seed": seed,
            "data": {"name": self.data.name, "digest": self.data.digest},
            "weights": digest_of(torch.from_numpy(fitted["components"])),
            "recipe": json_table(self.recipe.table()),
            "training": {"seconds": float(fitted["seconds"]), "warnings": json.loads(str(fitted["warnings"]))},
            "certifier": {"name": "neighbors", "norm": "l2", "k": k, "near": plan.near, "box": plan.box}
            | {"seconds": seconds},
            "versions": versions(),
            "commit": commit(),
        }
        return Records(columns, facts)


def records_folder(out: Path, metric: str, k: int, seed: int) -> Path:
    """Where the records of one metric, number of neighbours and seed lie."""
    return out / metric / f"k-{k}" / f"seed-{seed}" / "records"


def study_of(recipe: CertificateRecipe, out: Path) -> Study:
    """The certificates of a recipe that are there, as one study."""
    runs = [run for k in recipe.certify.k for run in _runs(recipe, out, k)]
    if not runs:
        raise FileNotFoundError(f"{out} holds no certificates to report; run `holdfast certify {recipe.name}` first")
    return Study(
        name=recipe.name,
        title=recipe.title,
        description=recipe.description,
        runs=runs,
        radii=recipe.certify.radii,
        recipe=toml.dumps(recipe.table()),
    )


def _runs(recipe: CertificateRecipe, out: Path, k: int, besides: Collection[tuple[str, int]] = ()) -> list[Run]:
    """The runs that are there, but not these; all of the recipe's settings."""
    runs = []
    for metric, plan in recipe.metrics.items():
        for seed in recipe.seeds:
            folder = records_folder(out, metric, k, seed)
            if (metric, seed) not in besides and (folder / "facts.json").is_file():
                records = Records.load(folder)
                _check_settings(recipe, metric, records, folder)
                runs.append(Run(name=metric, method=plan.learner, seed=seed, records=records, group=f"K = {k}"))
    return runs


def _check_settings(recipe: CertificateRecipe, metric: str, records: Records, folder: Path) -> None:
    """Refuse to show records under a recipe that did not make them; where tables are read off does not matter."""
    made, here = records.facts["recipe"], json_table(recipe.table())
    same = made["data"] == here["data"] and made["metrics"].get(metric) == here["metrics"][metric]
    decisive = ("samples", "near", "box")
    if not same or any(made["certify"][name] != here["certify"][name] for name in decisive):
        raise ValueError(
            f"{folder} holds certificates of other settings; give the --set changes they were made with, "
            f"or certify again with `holdfast certify {recipe.name}`"
        )


def run(
    recipe: CertificateRecipe,
    out: Path,
    data_dir: Path | None,
    progress: Progress,
    metric: str | None = None,
    seed: int | None = None,
    device: str = "auto",
) -> Study:
    """Fit and certify what is missing and write the page, report.html, of all that is there."""
    desk = Desk.open(recipe, out, data_dir, device, progress)
    chosen = desk.chosen(metric, seed)
    for k in recipe.certify.k:
        _runs(recipe, out, k, besides=chosen)  # what is not made anew will be on the page: refused now or at the end
    for name, number in chosen:
        desk.certify(name, number)
    return report(recipe, out)


def report(recipe: CertificateRecipe, out: Path) -> Study:
    """Write the page, report.html, from the records under a folder; nothing is fitted or certified."""
    study = study_of(recipe, out)
    write_page(out / "report.html", study_page(study))
    return study


def _device(name: str) -> torch.device:
    """The device of this name; auto is a GPU that can compute in float64, where there is one."""
    device = open_fabric(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name).device
    if device.type == "mps":
        raise ValueError("device 'mps' has no float64, which certificates need; choose auto, cpu or cuda")
    return device


def _inputs(split: Split, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    x, y = split.x.to(device), split.y.to(device)
    return x.double() / 255 if x.dtype == torch.uint8 else x.double(), y


def _key(identity: list[Any]) -> str:
    return sha256(json.dumps([1, identity], sort_keys=True).encode()).hexdigest()[:32]
