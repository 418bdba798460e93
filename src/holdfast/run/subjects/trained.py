"""Models trained by the methods of a recipe, as subjects."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.contracts import Attack
from holdfast.crafting import using
from holdfast.crafting.arithmetic import arithmetic
from holdfast.evaluation.checks import identity
from holdfast.evaluation.subject import Subject, network
from holdfast.models.classifier import adapt, layer_features
from holdfast.models.own import bare
from holdfast.recipes import kinds
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.analyze import AnalyzeConfig
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.records import snapshot
from holdfast.records.files import read_json
from holdfast.run.session import Evaluation, Session
from holdfast.run.subjects.networks import certificate_measurements, network_evaluation
from holdfast.training.job import Job
from holdfast.training.loop import rehearse, train


def folder_of(out: Path, method: str, seed: int) -> Path:
    """Where a model and its records are stored."""
    return out / method / f"seed-{seed}"


def starts(recipe: Recipe, method: str) -> list[str]:
    """The methods that must be trained before this one, which starts from their weights, in order of training."""
    start = recipe.methods[method].train.init_from
    return [] if start is None or start not in recipe.methods else [*starts(recipe, start), start]


@dataclass(frozen=True)
class Trained:
    """The models of [methods], one for each method and seed."""

    session: Session

    def job(self, method: str, seed: int) -> Job:
        recipe = self.session.recipe
        entry = recipe.methods[method]
        start = entry.train.init_from
        if start is not None and start in recipe.methods:
            start = str(folder_of(self.session.out, start, seed) / "best.safetensors")
        assert recipe.validate is not None  # a recipe with methods has a threat
        return Job(
            entry=entry,
            model=recipe.model_of(method),
            validate=recipe.validate,
            seed=seed,
            folder=folder_of(self.session.out, method, seed),
            init_from=None if start is None else Path(start),
        )

    def rehearse(self, chosen: Iterable[tuple[str, int]]) -> None:
        """Compute the first loss of each method that is not trained yet, so that bad settings are refused early."""
        jobs = [(name, seed) for method, seed in chosen for name in (*starts(self.session.recipe, method), method)]
        todo = {name: seed for name, seed in jobs if not self.job(name, seed).done}
        for number, (method, seed) in enumerate(todo.items()):
            self.session.progress("try each method", number, len(todo), method)
            try:
                self._rehearse(method, seed)
            except (ValueError, KeyError, FileNotFoundError) as error:
                reason = error.args[0] if isinstance(error, KeyError) and error.args else error
                raise ValueError(f"methods.{method}: {reason}") from error
            except RuntimeError as error:
                raise RuntimeError(f"methods.{method}: {error}") from error
        if todo:
            self.session.progress("try each method", len(todo), len(todo), "")

    def _rehearse(self, method: str, seed: int) -> None:
        session, before = self.session, starts(self.session.recipe, method)
        if session.recipe.certificates:
            certificate_measurements(session, self.job(method, seed).build(session.training_data))
        if session.recipe.analyze is not None:
            _try_layers(session.recipe.analyze, self.job(method, seed).build(session.training_data), session)
        untrained = before and not self.job(before[-1], seed).done
        start = session.recipe.model_of(before[-1]) if untrained else None
        with arithmetic(session.recipe.arithmetic), using(session.recipe.crafting):
            rehearse(self.job(method, seed), session.training_data, session.fabric, start)

    def prepare(self, method: str, seed: int) -> None:
        """Train one model unless it is trained; a model that it starts from is trained first."""
        session, job = self.session, self.job(method, seed)
        if before := starts(session.recipe, method):
            self.prepare(before[-1], seed)
        if job.done:
            job.check_crafted(session.recipe.arithmetic, session.recipe.crafting)
        tick = partial(session.progress, f"train {method}, seed {seed}")
        train(job, session.training_data, session.fabric, tick, session.recipe.arithmetic, session.recipe.crafting)

    def model(self, method: str, seed: int) -> nn.Module:
        """A trained model."""
        return self._identified(method, seed)[0]

    def _identified(self, method: str, seed: int) -> tuple[nn.Module, str, str]:
        """A trained model, the digest of its weights, and what else identifies it: the code of a user's network."""
        session, job = self.session, self.job(method, seed)
        if not job.done:
            raise FileNotFoundError(f"{job.folder} holds no finished model; train {method} with seed {seed} first")
        job.check_crafted(session.recipe.arithmetic, session.recipe.crafting)
        job.check(session.training_data)  # records must name the settings that the weights were trained with
        path = job.folder / f"{session.recipe.evaluate.weights}.safetensors"
        tensors, _ = snapshot.read(path)
        digest = snapshot.digest(tensors)
        if read_json(job.folder / "trained.json").get("weights", {}).get(path.stem) != digest:
            raise ValueError(f"{path} is not what training wrote there; remove {job.folder} and train again")
        model = job.build(session.training_data)
        snapshot.load_weights(bare(model), tensors, path)
        code = identity(job.own, bare(model))["code"] if job.own else ""
        return session.fabric.to_device(model).eval(), digest, code

    def networks(self, method: str, seed: int) -> Iterator[Subject]:
        """The trained model as a subject, identified by its weights."""
        session, folder = self.session, folder_of(self.session.out, method, seed)
        model, digest, code = self._identified(method, seed)
        weights = {"kept": session.recipe.evaluate.weights, "digest": digest}
        facts = session.facts(method, kinds.name_of(session.recipe.methods[method].method), seed, weights)
        trained = read_json(folder / "trained.json")
        facts["training"] = {key: value for key, value in trained.items() if key != "weights"}
        yield network(model, name=method, seed=seed, digest=digest + code, folder=folder, facts=facts)

    def evaluations(self, method: str, seed: int) -> Iterator[Evaluation]:
        """The evaluation of a trained model: the attacks and certificates of the recipe."""
        for subject in self.networks(method, seed):
            attacks = {name: self.attack(name, method, seed) for name in self.session.recipe.attacks}
            yield network_evaluation(self.session, subject, attacks)

    def attack(self, name: str, method: str, seed: int) -> tuple[Attack, Mapping[str, Any]]:
        """An attack of the recipe on one model, with the settings that are stored in its records."""
        seeds, config = self.session.recipe.seeds, self.session.recipe.attacks[name]
        settings = json_table(config)
        if not isinstance(config, TransferConfig):
            return config, settings
        other = seeds[(seeds.index(seed) + 1) % len(seeds)]
        methods = dict.fromkeys(method if source == "self" else source for source in config.sources)
        models, digests, _ = zip(*(self._identified(source, other) for source in methods), strict=True)
        return config.on(models), {**settings, "weights": digests[0] if len(digests) == 1 else list(digests)}


def _try_layers(config: AnalyzeConfig, model: nn.Module, session: Session) -> None:
    """Refuse layers of an analysis that the network does not have."""
    named = [layer for layer in (config.layer, *config.layers) if layer is not None]
    with torch.no_grad():
        layer_features(adapt(model.eval()), session.training_data.train.batch(torch.arange(1)).x, named)
