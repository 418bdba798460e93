"""Recipes that results carry, read back: a newer version reads what an older one stored."""

from collections.abc import Container, Mapping
from typing import Any

from holdfast.contracts import Attack
from holdfast.recipes.build import Table, build, build_attack, build_method
from holdfast.recipes.model import ModelConfig, read_model
from holdfast.recipes.schema import Entry, Recipe, TrainConfig, read

_REMOVED: Mapping[str, Container[Any]] = {
    "save_every": range(1, 1 << 62),
    "signed": (False,),
    "squared": (False,),
}
"""Options that earlier versions had, with the values that mean the same without them."""


def read_recipe(table: Table, where: str) -> Recipe:
    """The recipe that records carry."""
    return read(_current(table), where, stored=True)


def read_job(table: Table) -> tuple[Entry, ModelConfig, Attack]:
    """The entry, the model and the validation attack that a trained model carries."""
    table = _current(table)
    method = build_method(table["method"], "method", None, None)
    entry = Entry(method=method, train=build(TrainConfig, table["train"], "train"))
    return entry, read_model(table["model"], "model"), build_attack(table["validate"], "validate", None)


def _current(value: Any) -> Any:
    """A stored table without options that are gone; one that was set to another value stays, and is refused later."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: item for key, item in value.items() if key not in _REMOVED or item not in _REMOVED[key]}
    return {key: _current(item) for key, item in kept.items()}
