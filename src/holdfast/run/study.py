"""A whole study: train what is missing, evaluate, report."""

import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import described
from holdfast.data import DataSet, Split
from holdfast.evaluation.evaluate import Subject, evaluate, trials
from holdfast.members import unknown
from holdfast.recipes import kinds, source, toml
from holdfast.recipes.assemble import build_model, load_data
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe, TransferPlan, read
from holdfast.records import snapshot
from holdfast.records.records import Records
from holdfast.records.stored import read_json, read_lines
from holdfast.report.page import write_page
from holdfast.report.sections import study_page
from holdfast.report.study import Run, Study
from holdfast.training.rehearsal import rehearse
from holdfast.training.train import Job, train

Progress = Callable[[str, int, int, str], None]
"""Told (what is being done, done, in all, a few words)."""


@dataclass(frozen=True)
class Workshop:
    """A recipe with the places it works in: where results go, where data lie, and the device."""

    recipe: Recipe
    out: Path
    data: DataSet
    fabric: Fabric
    progress: Progress

    @staticmethod
    def open(recipe: Recipe, out: Path, data_dir: Path | None, device: str, progress: Progress) -> "Workshop":
        """Load the data and pick the device."""
        _refuse_awaited(recipe)
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        return Workshop(recipe, out, load_data(recipe.data, data_dir), open_fabric(device), progress)

    def chosen(self, method: str | None, seed: int | None) -> list[tuple[str, int]]:
        """The models meant: all of the recipe, or one method, or one seed."""
        if method is not None and method not in self.recipe.methods:
            raise ValueError(unknown(f"method {method!r}", method, self.recipe.methods))
        if seed is not None and seed not in self.recipe.seeds:
            known = ", ".join(map(str, self.recipe.seeds))
            raise ValueError(f"seed {seed} is not in the recipe ({known}); add it with --set 'seeds=[...]'")
        methods = [name for name in self.recipe.methods if method in (None, name)]
        return [(name, s) for name in methods for s in self.recipe.seeds if seed in (None, s)]

    def job(self, method: str, seed: int) -> Job:
        """The training job of one model."""
        entry, folder = self.recipe.methods[method], self.folder(method, seed)
        start = entry.train.init_from
        if start is None:
            path = None
        elif start in self.recipe.methods:
            path = self.folder(start, seed) / "best.safetensors"
        else:
            path = Path(start)
        return Job(
            entry=entry,
            model=self.recipe.model_of(method),
            validate=self.recipe.validate,
            seed=seed,
            folder=folder,
            init_from=path,
        )

    def folder(self, method: str, seed: int) -> Path:
        """Where a model lives."""
        return self.out / method / f"seed-{seed}"

    def rehearse(self, chosen: Iterable[tuple[str, int]]) -> None:
        """One loss of each method still to be trained or started from, so that none fails only when its turn comes."""
        line = [(name, seed) for method, seed in chosen for name in (*self._starts(method), method)]
        todo = {name: seed for name, seed in line if not self.job(name, seed).done}
        for place, (method, seed) in enumerate(todo.items()):
            self.progress("try each method", place, len(todo), method)
            try:
                self._rehearse(method, seed)
            except (ValueError, KeyError, FileNotFoundError) as error:
                said = error.args[0] if isinstance(error, KeyError) and error.args else error
                raise ValueError(f"methods.{method}: {said}") from error
            except RuntimeError as error:
                raise RuntimeError(f"methods.{method}: {error}") from error
        if todo:
            self.progress("try each method", len(todo), len(todo), "")

    def _rehearse(self, method: str, seed: int) -> None:
        starts = self._starts(method)
        waits = starts and not self.job(starts[-1], seed).done
        with arithmetic(self.recipe.arithmetic):
            start = self.recipe.model_of(starts[-1]) if waits else None
            rehearse(self.job(method, seed), self.data, self.fabric, start)

    def _starts(self, method: str) -> list[str]:
        """The methods that one starts from, the first to be trained first."""
        start = self.recipe.methods[method].train.init_from
        return [] if start is None or start not in self.recipe.methods else [*self._starts(start), start]

    def train(self, method: str, seed: int) -> None:
        """Train one model unless it is there; a model it starts from is trained first."""
        job = self.job(method, seed)
        if starts := self._starts(method):
            self.train(starts[-1], seed)
        words = f"train {method}, seed {seed}"
        with arithmetic(self.recipe.arithmetic):
            train(job, self.data, self.fabric, lambda done, total, said: self.progress(words, done, total, said))

    def model(self, method: str, seed: int) -> tuple[nn.Module, str]:
        """A trained model and the digest of its weights."""
        job = self.job(method, seed)
        if not job.done:
            raise FileNotFoundError(f"{job.folder} holds no finished model; train {method} with seed {seed} first")
        job.check(self.data)  # records must not name settings that the weights were not trained with
        path = job.folder / f"{self.recipe.evaluate.weights}.safetensors"
        tensors, _ = snapshot.read(path)
        if read_json(job.folder / "trained.json").get("weights", {}).get(path.stem) != snapshot.digest(tensors):
            raise ValueError(f"{path} is not what training wrote there; remove {job.folder} and train again")
        model = build_model(self.recipe.model_of(method), self.data.shape, len(self.data.classes), seed)
        snapshot.load_weights(model, tensors, path)
        return self.fabric.to_device(model).eval(), snapshot.digest(tensors)

    def attacks(self, method: str, seed: int) -> dict[str, tuple[Attack, Mapping[str, Any]]]:
        """The attacks of the recipe for one model, with the settings that go into its records."""
        return {name: self.attack(name, method, seed) for name in self.recipe.attacks}

    def attack(self, name: str, method: str, seed: int) -> tuple[Attack, Mapping[str, Any]]:
        """One of them; only a transfer needs another model than the one attacked."""
        plan = self.recipe.attacks[name]
        settings = json_table(plan)
        if not isinstance(plan, TransferPlan):
            return plan, settings
        other = self.recipe.seeds[(self.recipe.seeds.index(seed) + 1) % len(self.recipe.seeds)]
        model, digest = self.model(method if plan.source == "self" else plan.source, other)
        return Transfer(source=model, attack=plan.attack), {**settings, "weights": digest}

    def samples(self) -> Split:
        """The test samples that the recipe evaluates: all, or so many spread evenly over the set."""
        return self.data.test.spread(self.recipe.evaluate.samples)

    def evaluate(self, method: str, seed: int) -> Records:
        """Records of one model under the attacks of the recipe."""
        plan = self.recipe.evaluate
        model, digest = self.model(method, seed)
        with arithmetic(self.recipe.arithmetic):
            facts = self._facts(method, seed, model, digest)
        subject = Subject(model=model, digest=digest, folder=self.folder(method, seed), facts=facts)
        todo = trials(self.attacks(method, seed), plan.curve, plan.eps, plan.strip)
        words = f"attack {method}, seed {seed}"
        with arithmetic(self.recipe.arithmetic):
            return evaluate(
                subject,
                self.samples(),
                todo,
                seed=plan.seed,
                shard=plan.shard,
                device=self.fabric.device,
                tick=lambda done, total, said: self.progress(words, done, total, said),
            )

    def _facts(self, method: str, seed: int, model: nn.Module, digest: str) -> dict[str, Any]:
        trained = {k: v for k, v in read_json(self.folder(method, seed) / "trained.json").items() if k != "weights"}
        return {
            "model": method,
            "method": kinds.name_of(self.recipe.methods[method].method),
            "seed": seed,
            "data": {"name": self.data.name, "digest": self.data.digest},
            "weights": {"kept": self.recipe.evaluate.weights, "digest": digest},
            "recipe": json_table(self.recipe.table()),
            "training": trained,
            "crafting": described(model),
            "versions": versions(),
            "commit": commit(),
        }


def _refuse_awaited(recipe: Recipe) -> None:
    if recipe.awaited:
        missing = ", ".join(f"{table['name']!r}" for table in recipe.awaited.values())
        raise ValueError(
            f"recipe {recipe.name} judges with {missing}, which holdfast does not have yet; "
            f"go without: {source.without(recipe.awaited)}"
        )


def open_fabric(device: str) -> Fabric:
    """The engine on this device; one that cannot be used here is refused."""
    try:
        return Fabric(accelerator=device, devices=1)
    except (RuntimeError, ValueError, ImportError) as error:
        raise ValueError(f"device {device!r} cannot be used here ({error}); choose auto or cpu") from error


def finished(recipe: Recipe, out: Path) -> list[Run]:
    """The models of a recipe that have records under a folder."""
    runs = []
    for method, entry in recipe.methods.items():
        for seed in recipe.seeds:
            folder = out / method / f"seed-{seed}"
            if (folder / "records" / "facts.json").is_file():
                records = Records.load(folder / "records")
                _check_settings(recipe, method, records, folder)
                metrics, kind = read_lines(folder / "metrics.jsonl"), kinds.name_of(entry.method)
                runs.append(Run(name=method, method=kind, seed=seed, records=records, metrics=metrics))
    if not runs:
        raise FileNotFoundError(f"{out} holds no records to report; run `holdfast run {recipe.name}` first")
    return runs


def _check_settings(recipe: Recipe, method: str, records: Records, folder: Path) -> None:
    """Refuse to show records under a recipe that did not make them; options that came later had their defaults."""
    made = read(records.facts["recipe"], f"the recipe in {folder}").table()
    here = recipe.table()
    decisive = ("data", "model", "threat", "validate", "attacks", "evaluate")
    same = all(made[name] == here[name] for name in decisive)
    if not same or made["methods"].get(method) != here["methods"][method]:
        raise ValueError(
            f"{folder} holds records of other settings; give the --set changes they were made with, "
            f"or evaluate again with `holdfast run {recipe.name}`"
        )


def report(recipe: Recipe, out: Path) -> Path:
    """Write the page from the records under a folder; no model is touched."""
    path = out / "report.html"
    write_page(path, study_page(study_of(recipe, finished(recipe, out))))
    return path


def study_of(recipe: Recipe, runs: list[Run]) -> Study:
    """The runs of a recipe as one study."""
    return Study(
        name=recipe.name,
        title=recipe.title,
        description=recipe.description,
        runs=runs,
        norm=recipe.threat.norm.name,
        eps=recipe.threat.eps,
        threat=str(recipe.threat),
        recipe=toml.dumps(recipe.table()),
    )


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    packages = ("holdfast", "torch", "numpy", "scikit-learn", "lightning-fabric")
    machine = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    return machine | {name: version(name) for name in packages} | {"threads": str(torch.get_num_threads())}


def commit() -> str | None:
    """The commit of holdfast's own source, where it runs from a checkout."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
