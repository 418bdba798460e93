"""Reads recipes that are stored with results, also those that an older version stored."""

from holdfast.contracts import Attack
from holdfast.recipes import source
from holdfast.recipes.build import Table, build, build_attack, build_method
from holdfast.recipes.schema import Entry, Recipe, read
from holdfast.recipes.tables.model import ModelConfig, read_model
from holdfast.recipes.tables.train import TrainConfig


def read_recipe(table: Table, where: str) -> Recipe:
    """The recipe stored with records."""
    return read(source.current(table), where, stored=True)


def read_job(table: Table) -> tuple[Entry, ModelConfig | None, Attack]:
    """The entry, the model (None: a network from Python) and the validation attack stored with a trained model."""
    table = source.current(table)
    method = build_method(table["method"], "method", None, None)
    entry = Entry(method=method, train=build(TrainConfig, table["train"], "train"))
    model = None if table["model"] is None else read_model(table["model"], "model")
    return entry, model, build_attack(table["validate"], "validate", None)
