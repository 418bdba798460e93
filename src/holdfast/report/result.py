"""The result of an evaluation from Python: a table, the robust accuracy, a data frame, files and a page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.geometry import Threat
from holdfast.records.provenance import computing_code
from holdfast.records.records import Mask, Records
from holdfast.report.crafted import crafted, unanswered
from holdfast.report.elements.format import listed, percent
from holdfast.report.elements.table import UNKNOWN
from holdfast.report.page import write_page
from holdfast.report.study import Run, Study, today
from holdfast.report.study_page import study_page
from holdfast.report.summary import against
from holdfast.settings import path_of
from holdfast.statistics import Share


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What :func:`holdfast.evaluate` measured: the records of each model by name, and the threats.

    ``print(result)`` shows accuracy with 95 % Wilson intervals. Records hold one row per sample; see
    :class:`holdfast.records.records.Records`.
    """

    records: Mapping[str, Records]
    threats: Sequence[Threat]

    def __getitem__(self, model: str) -> "Result":
        """The result of one model."""
        if model not in self.records:
            raise KeyError(f"there is no model {model!r} in this result; it has {', '.join(self.records)}")
        return Result({model: self.records[model]}, self.threats)

    @property
    def robust_accuracy(self) -> Share:
        """The share of samples that no attack fools, over all threats: ``.value``, ``.low``, ``.high`` and ``.n``."""
        return Share.of(self.held)

    @property
    def clean_accuracy(self) -> Share:
        """The share of samples that are classified correctly without an attack."""
        return Share.of(self._one().correct)

    @property
    def held(self) -> Mask:
        """Mask of the samples that are classified correctly and that no attack fools, over all threats."""
        return held(self._one(), self.threats)

    def _one(self) -> Records:
        if len(self.records) > 1:
            first = next(iter(self.records))
            raise ValueError(f"this result has {len(self.records)} models; choose one, e.g. result[{first!r}]")
        return next(iter(self.records.values()))

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of :meth:`to_frame` as arrays."""
        tables = [
            {"model": np.array([name] * len(one)), **one.columns, "held": held(one, self.threats)}
            for name, one in self.records.items()
        ]
        shared = [name for name in tables[0] if all(name in table for table in tables)]
        return {name: np.concatenate([table[name] for table in tables]) for name in shared}

    def to_frame(self) -> Any:
        """One row per model and sample, as a pandas DataFrame; ``held`` says whether the sample is robust."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                "to_frame needs pandas, which is not installed; run: pip install pandas, or use result.columns()"
            ) from error
        return pandas.DataFrame(self.columns())

    def save(self, folder: str | Path) -> None:
        """Write the records of each model to a folder of its own; a folder that has records is refused."""
        top = path_of(folder, "folder")
        folders = {name: top / _file_name(name) / "records" for name in self.records}
        for place in folders.values():
            if place.exists():
                raise ValueError(f"{place} exists already and nothing is replaced; choose another folder or remove it")
        for name, place in folders.items():
            self.records[name].save(place)

    def page(self, path: str | Path) -> Path:
        """Write the report as one HTML file; returns its path."""
        place = path_of(path, "path")
        threat = self.threats[0]
        runs = [Run(name=name, method="own", seed=0, records=one) for name, one in self.records.items()]
        study = Study(
            name="evaluation",
            title=f"{listed(list(self.records))} under attack",
            description="",
            runs=runs,
            recipe="",
            norm=threat.norm.name,
            eps=threat.eps,
            threat=", ".join(threat.text for threat in self.threats),
            date=today(),
            code=computing_code(),
        )
        write_page(place, study_page(study))
        return place

    def __str__(self) -> str:
        return text_table(list(table(self)), notes(self))

    __repr__ = __str__  # in an interactive session

    def _repr_html_(self) -> str:
        return html_table(list(table(self)), notes(self))


def text_table(rows: Sequence[Sequence[str]], notes: Iterable[str]) -> str:
    """Rows, of which the first is the head, in columns of equal width, with notes below."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:]), *notes])


def html_table(rows: Sequence[Sequence[str]], notes: Iterable[str]) -> str:
    """The same as HTML, for notebooks."""
    head, *body = rows
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    words = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{cells}</tbody></table>{words}"


def held(records: Records, threats: Sequence[Threat]) -> Mask:
    """Mask of the samples that hold against every one of these threats."""
    return np.asarray(np.all([records.held(threat.eps, threat.norm.name) for threat in threats], axis=0))


def table(result: Result) -> Iterator[list[str]]:
    """The head and the rows: clean accuracy, each attack, and the worst case of each threat and of their union."""
    every = list(result.records.values())
    yield ["accuracy in %", *result.records]
    yield ["clean", *(_text(Share.of(one.correct)) for one in every)]
    for threat in result.threats:
        for name, attack in {name: a for one in every for name, a in one.attacks.items()}.items():
            if attack.norm == threat.norm.name and attack.measured_at(threat.eps) and attack.drawn_from is None:
                yield [name, *(_under(one, name, threat) for one in every)]
        worst = (Share.of(held(one, [threat])) for one in every)
        yield [f"worst case, {threat.short}", *map(_text, worst)]
    if len(result.threats) > 1:
        yield ["worst case, all threats", *(_text(Share.of(held(one, result.threats))) for one in every)]


def _under(records: Records, name: str, threat: Threat) -> str:
    return _text(against(records, name, threat.eps)) if name in records.attacks else UNKNOWN


def _text(share: Share) -> str:
    return f"{percent(share.value)} [{percent(share.low)}, {percent(share.high)}]"


def notes(result: Result) -> Iterator[str]:
    """How many samples there were, how each model was attacked, and what to keep in mind."""
    sizes = sorted({len(one) for one in result.records.values()})
    yield f"n = {' to '.join(map(str, sizes))}; brackets are 95 % Wilson intervals."
    yield from crafted(result.records)
    yield from unanswered(result.records)
    for name, one in result.records.items():
        which = f" ({name})" if len(result.records) > 1 else ""
        yield from (f"{text}{which}" for text in _warnings(one))


def _warnings(records: Records) -> Iterator[str]:
    for name, attack in records.attacks.items():
        if attack.outside:
            yield f"{name} returned {attack.outside} points outside the threat, which count as failed."
    if left_out := records.facts.get("left_out"):
        yield f"The budget did not suffice for all of {listed(left_out)}, so robust accuracy is an upper bound."
    if "draws" in records.facts.get("clean", {}):
        yield "The model is randomized: a sample counts as robust only if all draws are right."


def _file_name(name: str) -> str:
    if name.strip(". ") == "" or any(c in name for c in '/\\:*?"<>|\0'):
        raise ValueError(f"the model name {name!r} cannot name a folder; evaluate with {{'name': model}}")
    return name
