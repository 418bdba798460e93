"""Runs the same recipes on two checkouts and compares weights bit for bit and records sample by sample.

python benchmarks/same_results.py BEFORE AFTER [--recipe NAME|FILE.toml ...] [--out DIR]
                                  [--before-results DIR] [--after-results DIR]

Exits with 1 if anything differs. Results that are already in a results folder are compared and not computed again.
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

OWN_MODEL = "own-model"
RECIPES = ("quickstart", "arml-digits", OWN_MODEL)

# The network labels its own samples, so that all are classified correctly and only the attacks decide who is fooled.
NETS = """
import numpy as np
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    ).eval()
    with torch.no_grad():
        net[-1].bias -= net(samples()).mean(0)
    return net


def samples():
    return torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))


if __name__ == "__main__":
    np.savez("data.npz", x_test=samples().numpy(), y_test=build()(samples()).argmax(1).numpy())
"""
FLOAT32 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # without bfloat16 instructions `auto` arithmetic is float32
OWN_ATTACKS = ("noise", "fgsm", "pgd:steps=40,restarts=5", "pgd:steps=40,restarts=5,loss=logit_difference")
OWN_COMMAND = (
    *("evaluate", "--model", "nets:build", "--data", "npz:data.npz", "--threat", "linf:0.01"),
    *(word for attack in OWN_ATTACKS for word in ("--attack", attack)),  # the default ones have changed since 089fef5
)

Key = tuple[str, int | None, int]  # model, k of a nearest-neighbor classifier, seed
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Measured:
    """The records of one model: the folder that holds them and its weights, and the facts."""

    folder: Path
    facts: Mapping[str, Any]

    def columns(self) -> Columns:
        with (self.folder / "records" / "records.csv").open(newline="") as file:
            names, *rows = csv.reader(file)
        return {name: np.array([_number(row[i]) for row in rows]) for i, name in enumerate(names)}

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        return {path.stem: load_file(path) for path in sorted(self.folder.glob("*.safetensors"))}

    def digest(self) -> str:
        weights = self.facts["weights"]
        return str(weights["digest"] if isinstance(weights, dict) else weights)

    def made_with(self) -> dict[str, str]:
        return {"commit": str(self.facts.get("commit"))[:7]} | dict(self.facts.get("versions", {}))


def main() -> int:
    """Run what is missing, compare, print the table; the exit code."""
    asked = _arguments()
    inputs = asked.out / "inputs"
    rows: list[tuple[str, bool]] = []
    for recipe in asked.recipe:
        name, command = prepared(asked.before, recipe, inputs)
        folders = asked.before_results / name, asked.after_results / name
        for checkout, folder in zip((asked.before, asked.after), folders, strict=True):
            run(checkout, command, inputs, folder)
        rows += compared(name, *map(measured, folders))
    print("| run | made with | weights | columns |\n| --- | --- | --- | --- |")
    print("\n".join(row for row, _ in rows))
    same = all(same for _, same in rows)
    print("\nAll weights and columns are the same." if same else "\nSomething differs.")
    return 0 if same else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout whose recipe files both run")
    parser.add_argument("after", type=Path)
    parser.add_argument("--recipe", nargs="+", default=RECIPES, help=f"default: {' '.join(RECIPES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/same-results"), help="default: %(default)s")
    parser.add_argument("--before-results", type=Path, help="default: OUT/before")
    parser.add_argument("--after-results", type=Path, help="default: OUT/after")
    asked = parser.parse_args()
    asked.before_results = asked.before_results or asked.out / "before"
    asked.after_results = asked.after_results or asked.out / "after"
    return asked


def prepared(checkout: Path, recipe: str, inputs: Path) -> tuple[str, list[str]]:
    """Copy what a recipe needs to the folder of inputs; its name and the command that runs it there."""
    inputs.mkdir(parents=True, exist_ok=True)
    if recipe == OWN_MODEL:
        (inputs / "nets.py").write_text(NETS)
        subprocess.run([sys.executable, "nets.py"], cwd=inputs, check=True)
        return recipe, list(OWN_COMMAND)
    source = recipe_file(checkout, recipe)
    kept = Path(shutil.copy(source, inputs / source.name))
    certifies = "methods" not in (table := tomllib.loads(kept.read_text())) and "certify" in table
    return kept.stem, ["certify", kept.name] if certifies else ["run", kept.name, "--set", "arithmetic=float32"]


def recipe_file(checkout: Path, recipe: str) -> Path:
    """The file of a recipe: a path, or a name that the checkout ships, wherever its version keeps recipes."""
    found = [Path(recipe)] if recipe.endswith(".toml") else sorted((checkout / "src").rglob(f"{recipe}.toml"))
    if len(found) != 1 or not found[0].is_file():
        raise SystemExit(f"{recipe!r} names {len(found)} recipe files in {checkout}; give a shipped name or a file")
    return found[0]


def run(checkout: Path, command: list[str], inputs: Path, out: Path) -> None:
    """Call the command line of a checkout unless ``out`` holds a report, which is written last."""
    if (out / "report.html").is_file():
        print(f"{out}: finished before", file=sys.stderr)
        return
    environment = os.environ | {"PYTHONPATH": str((checkout / "src").resolve())}
    if command == list(OWN_COMMAND):  # it has no option for the arithmetic
        environment |= FLOAT32
    print(f"{out}: holdfast {' '.join(command)} with {checkout}", file=sys.stderr)
    called = [sys.executable, "-m", "holdfast", *command, "--out", str(out.resolve())]
    done = subprocess.run(called, cwd=inputs, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"holdfast {' '.join(command)} with {checkout} ended with exit code {done.returncode}")


def compared(name: str, before: dict[Key, Measured], after: dict[Key, Measured]) -> Iterator[tuple[str, bool]]:
    """For each model of a run: its row of the table, and whether nothing differs."""
    for key in before | after:
        model, k, seed = key
        title = f"{name}: {model}, {'' if k is None else f'K = {k}, '}seed {seed}"
        if key not in before or key not in after:
            yield f"| {title} | | only {'before' if key in before else 'after'} | |", False
            continue
        first, second = before[key], after[key]
        weights, same_weights = compared_weights(first, second)
        columns, same_columns = compared_columns(first.columns(), second.columns())
        other = compared_versions(first.made_with(), second.made_with())
        yield f"| {title} | {other} | {weights} | {columns} |", same_weights and same_columns


def measured(folder: Path) -> dict[Key, Measured]:
    """All records below a folder, whatever its layout."""
    found: dict[Key, Measured] = {}
    for path in sorted(folder.rglob("records/facts.json")):
        facts = json.loads(path.read_text())["facts"]
        key = _key(facts, path)
        if key in found:
            raise SystemExit(f"{path.parent} and {found[key].folder} both hold records of {key}; remove one")
        found[key] = Measured(path.parents[1], facts)
    if not found:
        raise SystemExit(f"{folder} holds no records")
    return found


def _key(facts: Mapping[str, Any], path: Path) -> Key:
    """Model, k and seed; k stands in the facts, in the name of a folder (k-11) or in that of the model (K = 11)."""
    named = re.search(r"[\s,(]*\bK ?= ?(\d+)\)?$", facts["model"])
    model = facts["model"][: named.start()] if named else facts["model"]
    outside = {name: value for name, value in facts.items() if name != "recipe"}  # a recipe lists every k
    places = [*_values(outside, "k"), *re.findall(r"/k-(\d+)/", path.as_posix()), *(named.groups() if named else ())]
    return model, next((int(k) for k in places), None), facts["seed"]


def _values(table: Any, name: str) -> Iterator[int]:
    if isinstance(table, dict):
        if isinstance(table.get(name), int):
            yield table[name]
        for value in table.values():
            yield from _values(value, name)


def compared_versions(before: dict[str, str], after: dict[str, str]) -> str:
    """What the two were made with where it differs: commit, versions of libraries, threads."""
    differing = [name for name in before | after if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name)} / {after.get(name)}" for name in differing) or "same"


def compared_weights(before: Measured, after: Measured) -> tuple[str, bool]:
    """Weight files tensor by tensor; models without weight files by the digest in their facts."""
    first, second = before.weights(), after.weights()
    if not first and not second:
        same = before.digest() == after.digest()
        return f"digest {'same' if same else 'differs'}", same
    names = sorted(first.keys() | second.keys())
    verdicts = {name: name in first and name in second and same_bits(first[name], second[name]) for name in names}
    said = [f"{name} {'same' if same else 'differs'}" for name, same in verdicts.items()]
    return ", ".join(said), all(verdicts.values())


def same_bits(first: Columns, second: Columns) -> bool:
    """Whether two sets of named arrays have the same types, shapes and bytes."""
    return first.keys() == second.keys() and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in ((first[name], second[name]) for name in first)
    )


def compared_columns(before: Columns, after: Columns) -> tuple[str, bool]:
    """How many columns are the same, and every one that is not; columns that are new are not a difference."""
    differing = {name: _difference(name, before, after) for name in before}
    words = [f"{name}: {said}" for name, said in differing.items() if said]
    new = after.keys() - before.keys()
    added = [f"{len(new)} new"] if new else []
    return "; ".join([f"{len(before) - len(words)} same", *added, *words]), not words


def _difference(name: str, before: Columns, after: Columns) -> str:
    if name not in after:
        return "missing after"
    first, second = before[name], after[name]
    if len(first) != len(second):
        return f"{len(first)} samples before, {len(second)} after"
    differs = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    if not differs.any():
        return ""
    said = f"differs in {differs.sum()} of {len(first)}"
    if not name.startswith("fooled:"):
        return said
    more, fewer = int((second > first).sum()), int((first > second).sum())
    return f"{said} ({more} more, {fewer} fewer fooled; McNemar p = {mcnemar(more, fewer):.3g})"


def mcnemar(more: int, fewer: int) -> float:
    """The exact two-sided p-value: discordant samples fall on either side with probability 1/2."""
    discordant = more + fewer
    tail = sum(comb(discordant, i) for i in range(min(more, fewer) + 1))
    return float(min(1.0, tail / 2 ** (discordant - 1)))


def _number(text: str) -> float:
    return float(text == "True") if text in ("True", "False") else float(text)


if __name__ == "__main__":
    raise SystemExit(main())
