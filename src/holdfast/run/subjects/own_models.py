"""The user's own networks, as subjects."""

import json
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
from holdfast.evaluation.checks import check_model, identity
from holdfast.evaluation.subject import Subject, network
from holdfast.models.classifier import Normalize
from holdfast.models.imported import LIBRARIES, build
from holdfast.models.own import Own
from holdfast.recipes.build import json_table
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.recipes.tables.model import OwnModelConfig
from holdfast.records.files import read_json, write_text
from holdfast.records.records import Records
from holdfast.report.result import Result
from holdfast.run.session import Evaluation, Session
from holdfast.run.subjects.metrics import FITTED
from holdfast.run.subjects.networks import imports_of, network_evaluation


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
        """Do nothing: the network is trained already."""

    def evaluations(self, name: str, seed: int) -> Iterator[Evaluation]:
        """The evaluation of a network."""
        for subject in self.networks(name, seed):
            attacks = {one: self.attack(one, name, seed) for one in self.session.recipe.attacks}
            yield network_evaluation(self.session, subject, attacks)

    def networks(self, name: str, seed: int) -> Iterator[Subject]:
        """The network as a subject, identified by its weights and its code."""
        session, folder = self.session, folder_of(self.session.out, name, seed)
        config = session.recipe.models[name]
        model = self._model(config, seed)
        identified = identity(config.module, model)
        self._check_folder()
        _claim(folder, identified)
        weights = {"kept": None if config.weights is None else Path(config.weights).name}
        weights_facts = weights | {"digest": identified["weights"]}
        facts = session.facts(name, "own", seed, weights_facts) | {"identity": identified}
        yield network(model, name=name, seed=seed, digest=_digest(identified), folder=folder, facts=facts)

    def model(self, name: str, seed: int) -> nn.Module:
        """The network, checked."""
        return self._model(self.session.recipe.models[name], seed)

    def attack(self, name: str, model: str, seed: int) -> tuple[Attack, Mapping[str, Any]]:
        """An attack of the recipe with its settings."""
        attack = self.session.recipe.attacks[name]
        assert not isinstance(attack, TransferConfig)  # a recipe with [models] has none
        return attack, json_table(attack)

    def check_samples(self, name: str, seed: int) -> None:
        """Refuse to add to records of other samples, if a file of the data set has changed since."""
        folder, data = folder_of(self.session.out, name, seed) / "records", self.session.data
        stored = (folder / "facts.json").is_file()
        if stored and Records.load(folder).facts["data"]["digest"] != data.digest:
            raise ValueError(
                f"{self.session.out} holds results of other samples of {data.name}, whose files have changed since; "
                "choose another --out"
            )

    def judged(self, name: str, seed: int, file: Path) -> Result:
        """The verdict on adversarial examples from a file, one for each test sample, in their order."""
        session, threat = self.session, self.session.recipe.threat
        assert threat is not None  # of --threat
        split, x_adv = session.samples(session.recipe.evaluate.samples), read_examples(file)
        if len(x_adv) <= (last := int(split.index.max())):
            raise ValueError(f"{file} has {len(x_adv)} examples but sample {last} is judged; give one for each sample")
        data = EvaluationSet(session.data.name, split, session.data.classes)
        with imports_of(session.recipe):
            model = self._model(session.recipe.models[name], seed)
            return judge({folder_name(name): model}, data, x_adv[split.index], None, threat, rng=seed)

    def _model(self, config: OwnModelConfig, seed: int) -> nn.Module:
        data, weights = self.session.data, None if config.weights is None else Path(config.weights)
        if weights is None and config.module.startswith(tuple(f"{library}:" for library in LIBRARIES)):
            raise ValueError(f"the model {config.module} would have random weights, not worth evaluating; give weights")
        classes = None if data.classes is None else len(data.classes)
        module = build(config.module, weights, tuple(data.test.x.shape[1:]), classes, seed)
        own: nn.Module = self.session.fabric.to_device(Own(module, self._normalize(config))).eval()
        check_model(own, data, self.session.device)
        return own

    def _check_folder(self) -> None:
        """Refuse a folder that holds only other results, whose page would be overwritten."""
        recipe, out = self.session.recipe, self.session.out
        known = {*map(folder_name, recipe.models), *recipe.methods, *recipe.metrics}
        known |= {FITTED} if recipe.metrics else set()  # metrics are fitted first
        entries = {entry.name for entry in out.iterdir() if not entry.name.startswith(".")} if out.exists() else set()
        if entries and not entries & known:
            raise ValueError(f"{out} holds something other than results of {recipe.name}; choose another --out")

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


def _digest(identified: Mapping[str, str]) -> str:
    return sha256(json.dumps(identified, sort_keys=True).encode()).hexdigest()


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
        raise ValueError(f"{folder} holds something other than results of --model; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(identified, indent=1) + "\n")
