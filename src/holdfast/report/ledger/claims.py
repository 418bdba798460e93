"""Claims and the published figures: data files of the package, and what a claim is."""

import csv
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt, model_validator

LEVEL = 0.05  # of every test


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Row):
    """A recipe whose records decide a claim: its measures in the order of those of the claim.

    ``names`` maps methods of the claim to those of the recipe where they differ, and ``differs`` says how the recipe
    differs from the published setting; empty if it does not.
    """

    recipe: str
    measures: tuple[str, ...]
    names: dict[str, str] = {}
    differs: str = ""


class Claim(_Row):
    """The first method of every pair is better than the second, by each of the measures.

    ``unit`` is "points" for shares, whose differences are percentage points, or "ratio". ``least`` is the smallest lead
    that counts, and ``seeds`` how many seeds a verdict needs. ``answers`` are in the order of their weight.
    """

    id: str
    paper: str
    statement: str
    pairs: tuple[tuple[str, str], ...]
    measures: tuple[str, ...]
    answers: tuple[Answer, ...]
    least: NonNegativeFloat
    better: Literal["higher", "lower"] = "higher"
    unit: Literal["points", "ratio"] = "points"
    seeds: PositiveInt = 2

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.pairs and self.measures and self.answers):
            raise ValueError(f"the claim {self.id} needs at least one pair, one measure and one answer")
        short = next((answer for answer in self.answers if len(answer.measures) != len(self.measures)), None)
        if short is not None:
            raise ValueError(
                f"the claim {self.id} has the measures {', '.join(self.measures)} but {short.recipe} answers with "
                f"{', '.join(short.measures)}; name one for each"
            )
        return self

    @property
    def methods(self) -> list[str]:
        """The methods that are compared."""
        return list(dict.fromkeys(name for pair in self.pairs for name in pair))

    @property
    def scale(self) -> int:
        """What turns a share into the unit of the claim."""
        return 100 if self.unit == "points" else 1


class Figure(_Row):
    """A published number, with where it was published."""

    claim: str
    measure: str
    name: str
    value: float
    unit: str
    paper: str
    table: str
    dataset: str
    network: str
    method: str
    metric: str
    setting: str
    note: str


class _File(_Row):
    claims: tuple[Claim, ...]


def _resource(name: str) -> str:
    return files("holdfast.report.ledger").joinpath(name).read_text("utf-8")


@cache
def claims() -> Sequence[Claim]:
    """All claims."""
    return _File.model_validate(tomllib.loads(_resource("claims.toml"))).claims


@cache
def figures() -> Sequence[Figure]:
    """All published figures."""
    return [Figure.model_validate(row) for row in csv.DictReader(_resource("published.csv").splitlines())]


def published(claim: Claim, measure: str) -> dict[str, Figure]:
    """The published figures of a claim by one of its measures, by method."""
    return {one.name: one for one in figures() if (one.claim, one.measure) == (claim.id, measure)}
