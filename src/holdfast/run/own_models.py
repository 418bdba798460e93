"""The user's own networks, as subjects."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.api import judge
from holdfast.contracts import Attack
from holdfast.data import EvaluationSet
from holdfast.data.readers.npz import read_examples
from holdfast.evaluation.imported import Own, build, check_model, identity, import_from
from holdfast.evaluation.subject import network
from holdfast.models.classifier import Normalize
from holdfast.recipes.attack import TransferConfig
from holdfast.recipes.build import json_table
from holdfast.recipes.model import OwnModelConfig
from holdfast.records.files import read_json, write_text
from holdfast.report.result import Result
from holdfast.run.networks import network_evaluation
from holdfast.run.session import Evaluation, Session


def folder_name(name: str) -> str:
    """A name reduced to characters that folder names can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-") or "own"


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Where the records of a network are stored."""
    return out / folder_name(name) / f"seed-{seed}"


@dataclass(frozen=True)
class OwnModels:
    """The networks of [models]; nothing is trained, and the seed is that of the evaluation."""

    session: Session

    def prepare(self, name: str, seed: int) -> None:
        """Nothing to train."""

    def evaluations(self, name: str, seed: int) -> Iterator[Evaluation]:
        """The evaluation of a network; it may import from the working directory while it is measured."""
        session, folder = self.session, folder_of(self.session.out, name, seed)
        config = session.recipe.models[name]
        weights = None if config.weights is None else Path(config.weights)
        with import_from(os.getcwd()):
            model = self._model(config, seed)
            check_model(model, session.data, session.device)
            identified = identity(config.module, model)
            self._check_folder()
            _claim(folder, identified)
            digest = sha256(json.dumps(identified, sort_keys=True).encode()).hexdigest()
            weights_facts = {"kept": None if weights is None else weights.name, "digest": identified["weights"]}
            facts = session.facts(name, "own", seed, weights_facts) | {"identity": identified}
            subject = network(model, name=name, seed=seed, digest=digest, folder=folder, facts=facts)
            yield network_evaluation(session, subject, self._attacks())

    def judged(self, name: str, seed: int, file: Path) -> Result:
        """The verdict on adversarial examples from a file, one for each test sample, in their order."""
        session, threat = self.session, self.session.recipe.threat
        assert threat is not None  # of --threat
        split, x_adv = session.samples(session.recipe.evaluate.samples), read_examples(file)
        if len(x_adv) <= (last := int(split.index.max())):
            raise ValueError(f"{file} has {len(x_adv)} examples but sample {last} is judged; give one for each sample")
        data = EvaluationSet(session.data.name, split, session.data.classes)
        with import_from(os.getcwd()):
            model = self._model(session.recipe.models[name], seed)
            return judge({folder_name(name): model}, data, x_adv[split.index], None, threat, rng=seed)

    def _model(self, config: OwnModelConfig, seed: int) -> nn.Module:
        weights = None if config.weights is None else Path(config.weights)
        module = build(config.module, weights, self.session.data, seed)
        own: nn.Module = self.session.fabric.to_device(Own(module, self._normalize(config))).eval()
        return own

    def _check_folder(self) -> None:
        """Refuse a folder that holds only other results, whose page would be overwritten."""
        recipe, out = self.session.recipe, self.session.out
        known = {*map(folder_name, recipe.models), *recipe.methods, *recipe.metrics}
        entries = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")} if out.exists() else set()
        if entries and not entries & known:
            raise ValueError(f"{out} holds something else than results of {recipe.name}; choose another --out")

    def _normalize(self, config: OwnModelConfig) -> nn.Module | None:
        shape = tuple(self.session.data.test.x.shape[1:])
        if not config.mean:
            return None
        if len(shape) != 3 or len(config.mean) not in (1, shape[0]):
            raise ValueError(
                f"mean has {len(config.mean)} numbers but samples have shape {shape}; give one number for each "
                "channel of images, or one for all"
            )
        return Normalize(config.mean, config.std)

    def _attacks(self) -> dict[str, tuple[Attack, Mapping[str, Any]]]:
        """The attacks of the recipe with their settings, without transfer attacks, which need a trained model."""
        attacks = self.session.recipe.attacks.items()
        return {
            name: (attack, json_table(attack)) for name, attack in attacks if not isinstance(attack, TransferConfig)
        }


def _claim(folder: Path, identified: Mapping[str, str]) -> None:
    """Claim the folder for this network; a folder with results of another network or a recipe is refused."""
    path = folder / "model.json"
    if path.is_file():
        stored = read_json(path)
        differs = [key for key in identified if stored.get(key) != identified[key]]
        if differs:
            other = " and ".join(differs)
            raise ValueError(
                f"{folder} holds results of another model (other {other}); choose another --out or remove it"
            )
    elif folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise ValueError(f"{folder} holds something else than results of --model; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(identified, indent=1) + "\n")
