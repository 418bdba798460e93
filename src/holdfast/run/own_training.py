"""The recipe of `holdfast train --model`, from its command line and from what was trained into its folder before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.recipes import schema, source, toml
from holdfast.recipes.build import build_threat, table_of
from holdfast.recipes.schema import Recipe
from holdfast.recipes.short import CRAFT, EPOCHS, attack_table, default_attacks, settings_table
from holdfast.records.files import write_text
from holdfast.run.own_recipe import check_given, check_same, model_config, name_of, read_size


def read_training(
    model: str,
    *,
    method: str | None,
    data: str | None,
    threat: str | None,
    epochs: int | None = None,
    weights: Path | None = None,
    size: str | None = None,
    mean: str | None = None,
    std: str | None = None,
    seed: int | None = None,
    changes: Sequence[str] = (),
) -> Recipe:
    """The recipe that trains a user's network; ``changes`` are those of --set."""
    check_given({"--method": (method, "tla"), "--data": (data, "imagefolder:PATH"), "--threat": (threat, "linf:8/255")})
    allowed = build_threat(threat, "--threat")
    chosen = settings_table(str(method), f"--method {method}")
    attacks = {"".join(text.split()): attack_table(text, text) for text in default_attacks(allowed)}
    table: dict[str, Any] = {
        "name": name_of(model, weights, str(data), allowed) + "-trained",
        "title": f"{model} trained",
        "description": f"{data}; first weights: {'as built' if weights is None else weights.name}.",
        "seeds": [seed or 0],
        "data": {"name": str(data)} | ({} if size is None else {"size": read_size(size)}),
        "model": {key: value for key, value in table_of(model_config(model, weights, mean, std)).items() if value},
        "threat": table_of(allowed),
        "train": {"epochs": EPOCHS if epochs is None else epochs},
        "craft": settings_table(CRAFT, "craft"),
        "methods": {chosen["name"]: chosen},
        "attacks": attacks,
        "evaluate": {"strip": next(name for name in reversed(attacks) if name != "triage")},
    }
    for change in changes:
        source.change(table, change)
    return schema.read(table, f"--model {model}", stored=True)


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Write the recipe into the folder of its results, so that the folder can be given to commands in its place."""
    write_text(out / source.STORED, toml.dumps(recipe.table()))


def with_methods(asked: Recipe, out: Path) -> Recipe:
    """The recipe with the methods that were trained into the folder before; those of another study are refused."""
    if not (out / source.STORED).is_file():
        return asked
    stored = schema.load(str(out.resolve()))
    if not stored.methods:
        raise ValueError(f"{out} holds an evaluation; choose another --out for trained models")
    before, now = stored.table(), asked.table()
    same = [key for key in now if key not in ("methods", "name", "title", "description")]
    check_same({key: before.get(key) for key in same}, {key: now[key] for key in same}, out)
    for name in stored.methods.keys() & asked.methods.keys():
        check_same({f"method {name}": before["methods"][name]}, {f"method {name}": now["methods"][name]}, out)
    return replace(asked, methods={**stored.methods, **asked.methods})
