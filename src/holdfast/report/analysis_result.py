"""The result of an analysis from Python: a table of what features do under attack, for each model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.geometry import Threat, eps_text
from holdfast.records.provenance import computing_code
from holdfast.report.analysis import Analysis
from holdfast.report.elements.format import listed, percent
from holdfast.report.elements.table import UNKNOWN
from holdfast.report.page import write_page
from holdfast.report.result import html_table, text_table
from holdfast.report.study import Run, Study, today
from holdfast.report.study_page import study_page
from holdfast.settings import path_of
from holdfast.statistics import Estimate, Share

_Measure = Callable[[Analysis], str]


@dataclass(frozen=True, eq=False, repr=False)
class Analyzed:
    """What :func:`holdfast.analyze` found: the :class:`~holdfast.report.analysis.Analysis` of each model by name.

    ``print(result)`` shows a table with 95 % intervals, and ``result["name"]`` gives the analysis of a model.
    """

    models: Mapping[str, Analysis]
    threat: Threat

    def __getitem__(self, model: str) -> Analysis:
        """The analysis of one model."""
        if model not in self.models:
            raise KeyError(f"there is no model {model!r} in this result; it has {', '.join(self.models)}")
        return self.models[model]

    def page(self, path: str | Path) -> Path:
        """Write the report with its figures as one HTML file; returns its path."""
        place = path_of(path, "path")
        runs = [
            Run(name=name, method="own", seed=0, records=one.samples, analysis=one) for name, one in self.models.items()
        ]
        study = Study(
            name="analysis",
            title=f"{listed(list(self.models))} inside",
            description="",
            runs=runs,
            recipe="",
            threat=self.threat.text,
            date=today(),
            code=computing_code(),
        )
        write_page(place, study_page(study))
        return place

    def __str__(self) -> str:
        return text_table(list(self._rows()), self._notes())

    __repr__ = __str__  # in an interactive session

    def _repr_html_(self) -> str:
        return html_table(list(self._rows()), self._notes())

    def _rows(self) -> Iterator[list[str]]:
        every = list(self.models.values())
        yield ["features under attack", *self.models]
        for name, measure in self._measures().items():
            yield [name, *(measure(one) for one in every)]

    def _measures(self) -> dict[str, _Measure]:
        """The rows of the table, with what good looks like."""
        first = self._first
        found: dict[str, _Measure] = {"accuracy, clean, %": lambda one: _share(one.clean)}
        for number, k in enumerate(first.neighbors.k):
            found[f"{k}-NN accuracy, clean, %"] = partial(_votes, level=None, number=number)
        for level in range(len(first.under)):
            found |= self._under(level)
        return found | {
            "distance moved (low is good)": lambda one: _number(one.drift.moved[-1]),
            "nearest to the true class mean, %": lambda one: _share(one.drift.home[-1]),
        }

    def _under(self, level: int) -> dict[str, _Measure]:
        """The rows under one attack; they name its eps if there are several."""
        first, common = self._first, self._common(level)
        under = first.under[level]
        at = f" at {eps_text(under.eps)}" * (len(first.under) > 1)
        attack = f"PGD-{under.steps}{at}"
        votes = {
            f"{k}-NN accuracy, {attack}, %": partial(_votes, level=level, number=number)
            for number, k in enumerate(first.neighbors.k)
        }
        return {
            f"accuracy, {attack}, %": lambda one: _share(one.under[level].accuracy),
            f"r{at}, to the false class (high is good)": lambda one: _number(
                one.under[level].separation.r.over(common)
            ),
            f"r'{at}, to the true class (low is good)": lambda one: _number(
                one.under[level].separation.r_prime.average
            ),
            **votes,
            f"detection AUC{at} (0.5 is chance)": lambda one: _number(one.under[level].detection.auc),
            f"detection AUC{at}, aware attack": lambda one: _number(one.under[level].detection_aware.auc),
            f"detected at 5 % FPR{at}": lambda one: _number(one.under[level].detection.at[0.05]),
            f"detected at 5 % FPR{at}, aware attack": lambda one: _number(one.under[level].detection_aware.at[0.05]),
        }

    @property
    def _first(self) -> Analysis:
        return next(iter(self.models.values()))

    def _common(self, level: int) -> list[int]:
        """The classes into which an attack moved samples of every model, on which r is compared."""
        first, *others = (set(one.under[level].separation.r.known) for one in self.models.values())
        return sorted(first.intersection(*others))

    def _notes(self) -> Iterator[str]:
        one = self._first
        yield (
            f"n = {one.clean.n}, drift of {one.drift.home[0].n}; {self.threat}. Brackets are 95 % intervals: Wilson of "
            "percentages, bootstrap over samples of the others."
        )
        for level, under in enumerate(one.under):
            classes, common = len(under.separation.r.classes), len(self._common(level))
            if common < classes:
                at = f" at {eps_text(under.eps)}" * (len(one.under) > 1)
                missing = "no sample was misclassified into the others"
                yield f"r{at} is the mean over {common} of {classes} classes: {missing}."
        randomly = [name for name, each in self.models.items() if each.under[-1].detection_aware.auc.low <= 0.5]
        if randomly:
            yield f"Once the attack knows the detector, it is at chance, or below, for {listed(randomly)}."


def _votes(one: Analysis, level: int | None, number: int) -> str:
    found = one.neighbors if level is None else one.under[level].neighbors
    return _share(found.accuracy[number])


def _share(share: Share) -> str:
    return f"{percent(share.value)} [{percent(share.low)}, {percent(share.high)}]"


def _number(estimate: Estimate) -> str:
    return UNKNOWN if estimate.value != estimate.value else str(estimate)
