"""A whole study: prepare the classifiers of a recipe, evaluate them, and report on what is there."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from torch import nn

from holdfast.contracts import Attack
from holdfast.evaluation.analyze import FOLDER
from holdfast.evaluation.subject import Subject
from holdfast.members import explained, unknown
from holdfast.recipes import toml
from holdfast.recipes.schema import Recipe
from holdfast.recipes.stored import read_recipe
from holdfast.records.files import read_lines
from holdfast.records.provenance import computing_code
from holdfast.records.records import Records
from holdfast.report.analysis import Analysis
from holdfast.report.study import Run, Study
from holdfast.run.parallel import run_each
from holdfast.run.session import Evaluation, Session
from holdfast.run.subjects import metrics, own_models, trained
from holdfast.run.subjects.networks import imports_of


class Source(Protocol):
    """Where classifiers come from: ``prepare`` trains or fits one, ``evaluations`` says what is measured of it, and
    ``networks`` are those whose inside can be analyzed."""

    def prepare(self, name: str, seed: int) -> None: ...
    def networks(self, name: str, seed: int) -> Iterator[Subject]: ...
    def evaluations(self, name: str, seed: int) -> Iterator[Evaluation]: ...


class Networks(Source, Protocol):
    """A source of networks: its models, and the attacks of the recipe with their settings."""

    def model(self, name: str, seed: int) -> nn.Module: ...
    def attack(self, name: str, model: str, seed: int) -> tuple[Attack, Mapping[str, Any]]: ...


NETWORKS: Mapping[str, Callable[[Session], Networks]] = {"methods": trained.Trained, "models": own_models.OwnModels}
"""The tables of a recipe that name networks."""


SOURCES: Mapping[str, Callable[[Session], Source]] = {**NETWORKS, "metrics": metrics.Metrics}
"""The tables of a recipe that name classifiers, and where those come from."""

TABLES = tuple(SOURCES)


@dataclass(frozen=True)
class Row:
    """One classifier of a recipe: its table, its name there, and its seed."""

    table: str
    name: str
    seed: int


def rows(recipe: Recipe, tables: Iterable[str] = TABLES, name: str | None = None, seed: int | None = None) -> list[Row]:
    """The classifiers of these tables of a recipe: all, or those of one name or seed."""
    seeds = {"methods": recipe.seeds, "models": (recipe.evaluate.seed,), "metrics": recipe.seeds}
    known = {table: list(getattr(recipe, table)) for table in tables}
    if not any(known.values()):
        raise ValueError(_nothing(recipe, known))
    if name is not None and not any(name in names for names in known.values()):
        kind = next(iter(known)).removesuffix("s")
        raise ValueError(unknown(f"{kind} {name!r}", name, [one for names in known.values() for one in names]))
    if seed is not None and not any(seed in seeds[table] for table, names in known.items() if names):
        listed = ", ".join(map(str, recipe.seeds))
        raise ValueError(f"seed {seed} is not in the recipe ({listed}); add it with --set 'seeds=[...]'")
    every = [Row(table, one, s) for table, names in known.items() for one in names for s in seeds[table]]
    return [row for row in every if name in (None, row.name) and seed in (None, row.seed)]


def _nothing(recipe: Recipe, tables: Iterable[str]) -> str:
    """Says that a recipe has none of these tables, and which command takes those that it has."""
    commands = {"methods": "run", "models": "evaluate", "metrics": "certify"}
    command, there = next((command, table) for table, command in commands.items() if getattr(recipe, table))
    sections, call = " or ".join(f"[{table}]" for table in tables), recipe.call or recipe.name
    return f"recipe {recipe.name} has no {sections} section; use `holdfast {command} {call}` for its [{there}]"


def prepare(session: Session, chosen: Iterable[Row]) -> None:
    """Train and fit what is missing; settings that cannot work are refused before the first training."""
    chosen = list(chosen)
    with imports_of(session.recipe):
        trained.Trained(session).rehearse([(row.name, row.seed) for row in chosen if row.table == "methods"])
    run_each(session, _independent(session.recipe, chosen), _prepare)


def _independent(recipe: Recipe, chosen: Iterable[Row]) -> list[list[Row]]:
    """The rows in groups that can be prepared at the same time: one that starts from another is in its group."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in chosen:
        before = trained.starts(recipe, row.name) if row.table == "methods" else []
        groups.setdefault((row.table, [*before, row.name][0], row.seed), []).append(row)
    return list(groups.values())


def _prepare(session: Session, group: Sequence[Row]) -> None:
    with imports_of(session.recipe):
        for row in group:
            SOURCES[row.table](session).prepare(row.name, row.seed)


def evaluate(session: Session, chosen: Iterable[Row]) -> None:
    """Measure classifiers that are trained; what is stored is not computed again."""
    run_each(session, list(chosen), _evaluate)


def _evaluate(session: Session, row: Row) -> None:
    with imports_of(session.recipe):  # also while it is measured: a network may import when it is called
        for evaluation in SOURCES[row.table](session).evaluations(row.name, row.seed):
            session.evaluate(evaluation)


def analyze(session: Session, chosen: Iterable[Row]) -> None:
    """Look inside networks that are trained; what is stored is not measured again."""
    run_each(session, list(chosen), _analyze)


def _analyze(session: Session, row: Row) -> None:
    with imports_of(session.recipe):
        for network in SOURCES[row.table](session).networks(row.name, row.seed):
            try:
                session.analyze(network)
            except ValueError as error:
                raise ValueError(f"{row.table}.{row.name}: {error}") from error


def report_on(recipe: Recipe, out: Path, besides: Iterable[Row] = ()) -> list[Run]:
    """The classifiers of a recipe that have records under a folder, but for some; all of the recipe's settings."""
    besides = set(besides)
    every = [(row, *at) for row in rows(recipe) if row not in besides for at in folders(recipe, out, row)]
    found = (_stored(recipe, out, row, group, folder) for row, group, folder in every)
    return [run for run in found if run is not None]


def _stored(recipe: Recipe, out: Path, row: Row, group: str, folder: Path) -> Run | None:
    """What is stored of a classifier: its records, its analysis, or both."""
    analysis = Analysis.load(folder)
    measured = (folder / "records" / "facts.json").is_file()
    if not measured and analysis is None:
        return None
    records = Records.load(folder / "records") if measured or analysis is None else analysis.samples
    _check_settings(recipe, row, records, folder, out)
    stale = "" if analysis is None else _stale(recipe, row, records, analysis, out)
    log = folder / "metrics.jsonl"
    return Run(
        name=row.name,
        method=records.facts["method"],
        seed=row.seed,
        group=group,
        records=records,
        metrics=read_lines(log) if log.is_file() else (),
        analysis=None if stale else analysis,
        left_out=stale,
    )


def folders(recipe: Recipe, out: Path, row: Row) -> list[tuple[str, Path]]:
    """The groups of a row with the folders of their records."""
    if row.table == "metrics":
        ks = () if recipe.certify is None else recipe.certify.k
        return [(metrics.group_of(k), metrics.folder_of(out, row.name, k, row.seed)) for k in ks]
    folder = trained.folder_of if row.table == "methods" else own_models.folder_of
    return [("", folder(out, row.name, row.seed))]


_DECISIVE = {
    "methods": ("data", "model", "threat", "validate", "attacks", "certificates", "evaluate", "arithmetic", "crafting"),
    "models": ("data", "threat", "attacks", "certificates", "evaluate", "arithmetic", "crafting"),
    "metrics": ("data",),
    "analysis": ("data", "model", "threat", "arithmetic", "crafting"),
}
"""The tables of a recipe that decide the records of a row, or its analysis, beside its own."""


@lru_cache(maxsize=8)
def _made(recipe: str, out: Path) -> Recipe:
    """A stored recipe from its JSON; the runs of a study mostly have the same."""
    return read_recipe(json.loads(recipe), f"the recipe in {out}")


def _check_settings(recipe: Recipe, row: Row, records: Records, folder: Path, out: Path) -> None:
    """Refuse to show records under a recipe that did not make them."""
    made = _made(json.dumps(records.facts["recipe"]), out)
    if _decisive(made, row) != _decisive(recipe, row):
        raise ValueError(
            f"{folder} holds records of other settings; give the --set changes they were made with, "
            f"or evaluate again with `{_command(recipe, out)}`"
        )


def _stale(recipe: Recipe, row: Row, records: Records, analysis: Analysis, out: Path) -> str:
    """Says that an analysis is of another network, or of other settings than the recipe's; empty if it is not."""
    facts = analysis.samples.facts
    made = _made(json.dumps(facts["recipe"]), out)
    command = f"it is not shown; run `holdfast analyze {recipe.call or recipe.name}` to make it again"
    if facts["weights"]["digest"] != records.facts["weights"]["digest"]:
        return f"The analysis of {row.name} (seed {row.seed}) is of another network, so {command}."
    asked = recipe.analyze is None or recipe.analyze == made.analyze
    if not asked or _decisive(made, row, "analysis") != _decisive(recipe, row, "analysis"):
        return f"The analysis of {row.name} (seed {row.seed}) is of other settings, so {command}."
    return ""


def _command(recipe: Recipe, out: Path) -> str:
    """The command that makes the records of a recipe under this folder."""
    folder = "" if out == recipe.default_out else f" --out {quote(str(out))}"
    return f"holdfast run {recipe.call or recipe.name}{folder}"


def _decisive(recipe: Recipe, row: Row, what: str = "") -> Mapping[str, Any]:
    table = recipe.table()
    found = {name: table.get(name) for name in _DECISIVE[what or row.table]}
    if row.table == "metrics" and recipe.certify is not None:  # radii and k only say what is shown
        found |= {name: getattr(recipe.certify, name) for name in ("samples", "near", "fit", "box")}
        found |= {"attacks": metrics.black_box_attacks(recipe)}
    return found | {"row": table.get(row.table, {}).get(row.name)}


def study_of(recipe: Recipe, out: Path) -> Study:
    """The records under a folder as one study."""
    runs = report_on(recipe, out)
    if not runs:
        raise FileNotFoundError(f"{out} holds no records to report; run `{_command(recipe, out)}` first")
    threat = recipe.threat
    return Study(
        name=recipe.name,
        title=recipe.title,
        description=recipe.description,
        notes=recipe.notes,
        runs=runs,
        norm=None if threat is None else threat.norm.name,
        eps=None if threat is None else threat.eps,
        threat="" if threat is None else threat.text,
        radii=() if recipe.certify is None else recipe.certify.radii,
        terms=_terms(recipe, runs),
        date=_measured(recipe, out),
        recipe=toml.dumps(recipe.table()),
        code=computing_code(),
    )


def _terms(recipe: Recipe, runs: Sequence[Run]) -> dict[str, str]:
    """The names of methods and metrics with what they stand for; names of one kind share a line."""
    classes = {name: type(entry.method) for name, entry in recipe.methods.items()}
    classes |= {name: metric.kind for name, metric in recipe.metrics.items()}
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(run.name for run in runs):
        if name in classes:
            found.setdefault(explained(classes[name]), []).append(name)
    return {", ".join(names): text for text, names in found.items()}


def _measured(recipe: Recipe, out: Path) -> str:
    """The day on which the newest records under a folder were written."""
    places = [folder for row in rows(recipe) for _, folder in folders(recipe, out, row)]
    files = [place / "records" / "facts.json" for folder in places for place in (folder, folder / FOLDER / "followed")]
    newest = max(file.stat().st_mtime for file in files if file.is_file())
    return datetime.fromtimestamp(newest, UTC).date().isoformat()
