"""Finds the records that answer claims: those that the recipes of the package made, with their settings as they are."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from holdfast.recipes import schema, source
from holdfast.recipes.schema import Recipe
from holdfast.recipes.stored import read_recipe
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.records.files import write_text
from holdfast.records.records import Records
from holdfast.report.analysis import Analysis
from holdfast.report.elements.format import plain
from holdfast.report.elements.table import markdown_table
from holdfast.report.ledger.claims import claims
from holdfast.report.ledger.comparison import Evidence
from holdfast.report.ledger.outcome import outcomes
from holdfast.report.ledger.page import counted, ledger_page, verdicts
from holdfast.report.ledger.page import markdown as markdown_text
from holdfast.report.page import write_page
from holdfast.statistics import Estimate

KEPT = Path("docs/results/records")
"""Where a checkout keeps records, in the folders of a run."""


def evidence(folders: Iterable[Path], recipes: Iterable[str]) -> tuple[list[Evidence], list[str]]:
    """The records below these folders that these recipes made, and a sentence for each that was left out.

    Of two records of one model the first counts.
    """
    found: dict[tuple[str, str, int], Evidence] = {}
    notes, wanted = [], {name: schema.load(name) for name in recipes if name in source.names()}
    for file in (file for folder in folders for file in sorted(folder.rglob("records/facts.json"))):
        for one in _read(file.parent, wanted):
            if isinstance(one, str):
                notes.append(one)
            else:
                found.setdefault((one.recipe, one.method, one.seed), one)
    return list(found.values()), notes


def _read(folder: Path, wanted: dict[str, Recipe]) -> Iterator[Evidence | str]:
    """The evidence in a folder of records, or why it is none; nothing if no claim asks for it."""
    records = Records.load(folder)
    name, method = str(records.facts.get("recipe", {}).get("name")), str(records.facts.get("model"))
    if name not in wanted or method not in wanted[name].methods or "analyze" in records.facts:
        return
    made = read_recipe(records.facts["recipe"], f"the recipe in {folder}")
    if different := _differences(made, wanted[name], method):
        yield f"{folder} was left out: its {', '.join(different)} differ from those of the recipe {name}."
        return
    yield Evidence(
        recipe=name,
        method=method,
        seed=records.facts["seed"],
        records=records,
        complete=_counting(wanted[name]) <= records.attacks.keys(),
        estimates=estimates(folder.parent, records),
    )


def estimates(folder: Path, records: Records) -> dict[str, Estimate]:
    """The numbers of the analysis of a model: those kept with its records, else those of the analysis in its folder.

    Numbers that are not known are left out.
    """
    if "analysis" in records.facts:
        return {name: Estimate(**value) for name, value in records.facts["analysis"].items()}
    analysis = Analysis.load(folder)
    numbers = {} if analysis is None else analysis.numbers()
    return {name: one for name, one in numbers.items() if isfinite(one.value + one.low + one.high)}


def _counting(recipe: Recipe) -> set[str]:
    """The attacks of the worst case; transfer needs a second seed and is weaker than the others."""
    threat, attacks = recipe.threat, recipe.attacks.items()
    return {name for name, one in attacks if not isinstance(one, TransferConfig) and one.threat == threat}


def _differences(made: Recipe, wanted: Recipe, method: str) -> Sequence[str]:
    """The tables that decide what a model is and how it is judged, where two recipes differ; an attack may be missing.

    Names of records are those of the recipe, so attacks of one name must have the same settings.
    """
    tables = [_decisive(recipe, method) for recipe in (made, wanted)]
    return [key for key in tables[1] if key in tables[0] and tables[0][key] != tables[1][key]]


def _decisive(recipe: Recipe, method: str) -> dict[str, Any]:
    table = recipe.table()
    decisive = {key: table.get(key) for key in ("data", "model", "threat")} | {"samples": recipe.evaluate.samples}
    decisive[f"methods.{method}"] = table["methods"].get(method)
    return decisive | {f"attacks.{name}": attack for name, attack in table["attacks"].items()}


def write_ledger(folders: Sequence[Path] | None, out: Path, markdown: Path | None) -> None:
    """Write the page of all claims, and Markdown if a file is given; print the verdicts."""
    asked = [Path("runs"), KEPT] if folders is None else folders
    for folder in folders or ():
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}; name folders that `holdfast run` has written")
    recipes = {answer.recipe for claim in claims() for answer in claim.answers}
    found, notes = evidence(asked, recipes)
    ledger = [outcomes(claim, found) for claim in claims()]
    page = ledger_page(ledger, notes)
    print("\n\n".join([markdown_table(verdicts(ledger)), *map(plain, [counted(ledger), *notes])]))
    if markdown is not None:
        write_text(markdown, markdown_text(page))
    write_page(out / "report.html", page)
    print(f"report: {out / 'report.html'}")
