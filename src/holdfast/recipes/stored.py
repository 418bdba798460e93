"""Reads recipes that are stored with results, also those that an older version stored."""

from collections.abc import Container, Mapping
from typing import Any

from holdfast.contracts import Attack
from holdfast.recipes.build import Table, build, build_attack, build_method
from holdfast.recipes.model import ModelConfig, read_model
from holdfast.recipes.schema import Entry, Recipe, read
from holdfast.recipes.train import TrainConfig

_REMOVED: Mapping[str, Container[Any]] = {
    "save_every": range(1, 1 << 62),
    "signed": (False,),
    "squared": (False,),
}
"""Options that were removed, with the values for which removing them changes nothing."""


def read_recipe(table: Table, where: str) -> Recipe:
    """The recipe stored with records."""
    return read(_current(table), where, stored=True)


def read_job(table: Table) -> tuple[Entry, ModelConfig, Attack]:
    """The entry, the model and the validation attack stored with a trained model."""
    table = _current(table)
    method = build_method(table["method"], "method", None, None)
    entry = Entry(method=method, train=build(TrainConfig, table["train"], "train"))
    return entry, read_model(table["model"], "model"), build_attack(table["validate"], "validate", None)


def _current(value: Any) -> Any:
    """A stored table without removed options; one with another value stays and is refused later."""
    if not isinstance(value, Mapping):
        return value
    known = {key: item for key, item in value.items() if key not in _REMOVED or item not in _REMOVED[key]}
    return {key: _current(item) for key, item in known.items()}
