"""The Markdown table of all figures, from their JSON alone."""

from collections.abc import Mapping, Sequence
from typing import Any

_MACHINE = ("threads", "torch", "capability", "avx512", "bf16", "preload", "load")
_FACTS = ("n", "repeats", "steps", "eps", "data", "dtype", *_MACHINE)


def markdown(found: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str], code: str) -> str:
    """What was wanted and what was measured, then every figure in detail."""
    lines = ["# Benchmarks", "", *_summary(found), ""]
    for name, title in titles.items():
        units = {unit: result for unit, result in found.items() if unit.partition(".")[0] == name}
        if units:
            lines += [f"## {title}", ""]
        for unit, result in units.items():
            lines += [f"**{unit.partition('.')[2]}**: {_facts(result['facts'])}", "", *rows(result["rows"]), ""]
    absent = {peer: why for result in found.values() for peer, why in result["facts"].get("absent", {}).items()}
    lines += [f"{peer} took no part: {why}" for peer, why in absent.items()]
    return "\n".join([*lines, f"Code {code}."]) + "\n"


def _summary(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [{"figure": unit, **line} for unit, result in found.items() for line in result["headlines"]]
    verdict = {True: "yes", False: "no", None: ""}
    return rows([{**line, "met": verdict[line["met"]]} for line in lines])


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(facts[name])}" for name in _FACTS if name in facts)


def rows(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of rows of scalars, its columns in the order they are met."""
    names = list(dict.fromkeys(name for row in table for name in row if not isinstance(row[name], list)))
    if not names:
        return ["nothing was measured"]
    lines = [names, ["---"] * len(names), *([_cell(row.get(name, "")) for name in names] for row in table)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_cell, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
