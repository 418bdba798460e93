"""How long a run takes: from the measured time of a training step of each method of a recipe."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from holdfast.recipes import schema


def hours(recipe: str, seeds: int) -> float | None:
    """Hours of one core that training a recipe with so many seeds takes; None if its steps were not timed."""
    loaded, known = schema.load(recipe), steps()["recipes"].get(recipe)
    if known is None or loaded.methods.keys() - known["seconds"].keys():
        return None
    trained = {name: entry.train for name, entry in loaded.methods.items()}
    samples = known["training samples"]
    each = [known["seconds"][name] * train.epochs * (samples // train.batch) for name, train in trained.items()]
    return float(seeds * sum(each) / 3600)


def command(recipe: str, seeds: int) -> str:
    """The command that trains and judges a recipe with so many seeds, or its own if these are more."""
    own = len(schema.load(recipe).seeds)
    change = f" --set 'seeds={list(range(seeds))}'" if seeds > own else ""
    return f"holdfast run {recipe}{change}"


def hours_left(recipe: str, seeds: int, have: int) -> str:
    """The hours of one core that training the seeds takes which a run does not have yet, in words."""
    wanted = max(len(schema.load(recipe).seeds), seeds)
    taken = hours(recipe, max(1, wanted - have))
    if taken is None:
        return "not timed"
    return f"{taken:,.0f}" if taken >= 10 else f"{taken:.1f}"


@cache
def steps() -> Mapping[str, Any]:
    """The measured times, and the machine on which they were taken."""
    found: Mapping[str, Any] = json.loads(files("holdfast.report.ledger").joinpath("steps.json").read_text("utf-8"))
    return found


def timed_on() -> str:
    """The processor on which steps were timed."""
    machine = steps()["machine"]
    return f"one thread of {machine['processor']} ({machine['in force']}), in float32"
