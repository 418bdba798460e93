"""Times a training step of every method of recipes, for the hours that `holdfast ledger` reckons with.

python benchmarks/steps.py [RECIPE ...] [--steps 20] [--out src/holdfast/report/ledger/steps.json]

By the CPU time of one thread, in float32: a busy machine matters little. Images are random and networks untrained: the
time of a step depends on neither. Recipes that are not named keep their times in the file.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench.timing import machine
from lightning_fabric import Fabric

from holdfast.crafting.arithmetic import arithmetic
from holdfast.data import DataSet, Split
from holdfast.recipes import schema
from holdfast.recipes.schema import Recipe
from holdfast.records.files import read_json, write_text
from holdfast.records.provenance import commit
from holdfast.training.job import Job
from holdfast.training.loop import Trainer

OUT = Path(__file__).resolve().parents[1] / "src/holdfast/report/ledger/steps.json"
# shape, classes and training samples, of which the recipe holds some out
DATA = {
    "mnist": ((1, 28, 28), 10, 60_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "tiny-imagenet": ((3, 64, 64), 200, 100_000),
}
HELD, NOT_COUNTED = 1000, 3  # samples; steps at most


def main() -> int:
    """Measure the recipes and add them to the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each method (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of all times (%(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = read_json(asked.out) if asked.out.is_file() else {"recipes": {}}
    for name in asked.recipes:
        found["recipes"][name] = measured(schema.load(name), asked.steps)
        print(f"{name}: {found['recipes'][name]}")
        found["machine"] = {**machine(), "commit": commit()}
        write_text(asked.out, json.dumps(found, indent=1) + "\n")
    return 0


def measured(recipe: Recipe, steps: int) -> dict[str, Any]:
    """The median CPU seconds of a step of each method, and the number of steps of an epoch."""
    _, _, samples = DATA[recipe.data.name]
    valid = recipe.data.valid if isinstance(recipe.data.valid, int) else round(samples * recipe.data.valid)
    data = images(recipe.data.name)
    with arithmetic("float32"):
        seconds = {method: round(step_seconds(recipe, method, data, steps), 5) for method in recipe.methods}
    return {"seconds": seconds, "training samples": samples - valid}


def images(name: str) -> DataSet:
    """Random images of the shape and with the classes of a data set."""
    shape, classes, _ = DATA[name]
    n = max(HELD, 5 * classes)
    split = Split(torch.randint(256, (n, *shape), dtype=torch.uint8), torch.arange(n) % classes, torch.arange(n))
    return DataSet(name, split, split, split, tuple(map(str, range(classes))))


def step_seconds(recipe: Recipe, method: str, data: DataSet, steps: int) -> float:
    """The median CPU seconds of a training step; the first few are not counted."""
    assert recipe.validate is not None
    job = Job(
        entry=recipe.methods[method],
        model=recipe.model_of(method),
        validate=recipe.validate,
        seed=0,
        folder=Path("not written"),
    )
    fabric = Fabric(accelerator="cpu", devices=1)
    trainer, taken = Trainer(job, data, fabric), []
    warm = min(NOT_COUNTED, steps)
    for number in range(warm + steps):
        which = trainer.batches.order.epoch(number)[0]
        began = time.process_time()
        # as in the middle of training, where the warm-up of eps is over
        terms = trainer.terms(trainer.total // 2 + number, which)
        trainer.optimizer.zero_grad(set_to_none=True)
        fabric.backward(terms.total)
        trainer.optimizer.step()
        taken.append(time.process_time() - began)
    return median(taken[warm:])


if __name__ == "__main__":
    raise SystemExit(main())
