"""A training job: everything that determines the weights of one model, and the folder it is stored in."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.contracts import Attack
from holdfast.data import DataSet
from holdfast.recipes.build import table_of
from holdfast.recipes.model import ModelConfig
from holdfast.recipes.schema import Entry
from holdfast.recipes.stored import read_job
from holdfast.records import snapshot
from holdfast.records.files import read_json, write_text


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to train: its method and settings, seed, initial weights and folder."""

    entry: Entry
    model: ModelConfig
    validate: Attack
    seed: int
    folder: Path
    init_from: Path | None = None

    @property
    def done(self) -> bool:
        """True if training has ended."""
        return (self.folder / "trained.json").is_file()

    def table(self, data: DataSet) -> dict[str, Any]:
        """The settings that identify the job; a folder that holds another job is not continued."""
        start = None if self.init_from is None else snapshot.digest(snapshot.read(self.init_from)[0])
        rest = {"model": table_of(self.model), "validate": table_of(self.validate), "seed": self.seed}
        return cast(dict[str, Any], table_of(self.entry)) | rest | {"data": data.digest, "init_from": start}

    def check(self, data: DataSet) -> str:
        """Refuse a folder that holds another job; returns the text that identifies this one."""
        path, table = self.folder / "job.json", self.table(data)
        text = json.dumps(table, indent=1, sort_keys=True) + "\n"
        if not _same(path, text, table) if path.is_file() else self.done:
            raise ValueError(f"{self.folder} holds a model of other settings; choose another --out or remove it")
        return text

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
