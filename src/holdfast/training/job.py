"""A training job: everything that determines the weights of one model, and the folder it is stored in."""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from holdfast.contracts import Attack
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.data import DataSet
from holdfast.evaluation.checks import identity
from holdfast.models.classifier import as_own
from holdfast.models.own import bare
from holdfast.recipes.assemble import build_model
from holdfast.recipes.build import table_of
from holdfast.recipes.schema import Entry
from holdfast.recipes.stored import read_job
from holdfast.recipes.tables.model import ModelConfig
from holdfast.records import snapshot
from holdfast.records.files import read_json, write_text


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to train: its method and settings, seed, initial weights and folder.

    ``model`` describes the network, or is None where ``network`` is given, which is copied.
    """

    entry: Entry
    model: ModelConfig | None
    validate: Attack
    seed: int
    folder: Path
    init_from: Path | None = None
    network: nn.Module | None = None

    def build(self, data: DataSet) -> nn.Module:
        """A new copy of the network, with its first weights."""
        if self.model is None:
            assert self.network is not None
            return as_own(deepcopy(self.network)).train()
        return build_model(self.model, data.shape, len(data.classes), self.seed)

    @property
    def own(self) -> str:
        """Where the user's network comes from; empty for a network of holdfast."""
        if self.model is not None:
            return str(self.model.module or self.model.encoder) if self.model.own else ""
        return type(self.network).__module__

    @property
    def done(self) -> bool:
        """True if training has ended."""
        return (self.folder / "trained.json").is_file()

    def table(self, data: DataSet) -> dict[str, Any]:
        """The settings that identify the job; a folder that holds another job is not continued."""
        start = None if self.init_from is None else snapshot.digest(snapshot.read(self.init_from)[0])
        rest = {"model": table_of(self.model), "validate": table_of(self.validate), "seed": self.seed}
        if self.own:
            rest |= {"network": identity(self.own, bare(self.build(data)))}
        return cast(dict[str, Any], table_of(self.entry)) | rest | {"data": data.digest, "init_from": start}

    def check(self, data: DataSet) -> str:
        """Refuse a folder that holds another job; returns the text that identifies this one."""
        path, table = self.folder / "job.json", self.table(data)
        text = json.dumps(table, indent=1, sort_keys=True) + "\n"
        if not _same(path, text, table) if path.is_file() else self.done:
            differs = _differs(path, text)
            raise ValueError(
                f"{self.folder} holds a model of other settings{differs}; choose another --out or remove it"
            )
        return text

    def check_crafted(self, arithmetic: Arithmetic, crafting: Mode) -> None:
        """Refuse a model whose training crafted in another way, if trained.json tells."""
        asked = {"arithmetic": arithmetic, "crafting": crafting}
        crafted = read_json(self.folder / "trained.json").get("crafted") or asked
        for key, value in asked.items():
            if value != crafted[key] and (key, value) != ("arithmetic", "auto"):
                raise ValueError(
                    f"{self.folder} holds a model trained with {key} = {crafted[key]!r} but {value!r} is asked for; "
                    "choose another --out or remove it"
                )

    def claim(self, data: DataSet) -> None:
        """Claim the folder for this job; remove the partial files and the old checkpoint of a killed process."""
        text = self.check(data)
        self.folder.mkdir(parents=True, exist_ok=True)
        for partial in self.folder.glob(".*.part"):
            partial.unlink(missing_ok=True)
        if self.done:
            (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)
        elif not (self.folder / "job.json").is_file():
            write_text(self.folder / "job.json", text)


def _differs(path: Path, text: str) -> str:
    """What differs between the job that a file holds and another one."""
    stored, table = read_json(path) if path.is_file() else {}, json.loads(text)
    differs = [key for key in table if stored.get(key) != table[key]]
    if not stored or not differs:
        return ""
    before, now = ({} if of.get("network") is None else of["network"] for of in (stored, table))
    if differs == ["network"] and [key for key in now if before.get(key) != now[key]] == ["weights"]:
        return " (the same network with other first weights: build it after torch.manual_seed, or give the function)"
    return f" ({', '.join(differs)})"


def _same(path: Path, text: str, table: dict[str, Any]) -> bool:
    """True if a file holds this job, written by this version or by an earlier one with other options."""
    if path.read_text(encoding="utf-8") == text:
        return True
    stored = read_json(path)
    try:
        entry, model, validate = read_job(stored)
    except (ValueError, KeyError):
        return False
    rest = {"model": table_of(model), "validate": table_of(validate)}
    return stored | cast(dict[str, Any], table_of(entry)) | rest == table
