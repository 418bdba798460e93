"""The result of an analysis from Python: a table of what features do under attack, for each model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.geometry import Threat
from holdfast.records.provenance import computing_code
from holdfast.report.analysis import Analysis
from holdfast.report.elements.format import listed, percent
from holdfast.report.elements.table import UNKNOWN
from holdfast.report.page import write_page
from holdfast.report.result import html_table, text_table
from holdfast.report.study import Run, Study, today
from holdfast.report.study_page import study_page
from holdfast.statistics import Estimate, Share


@dataclass(frozen=True, eq=False)
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
        runs = [
            Run(name=name, method="own", seed=0, records=one.samples, analysis=one) for name, one in self.models.items()
        ]
        study = Study(
            name="analysis",
            title=f"{listed(list(self.models))} inside",
            description="",
            runs=runs,
            recipe="",
            threat=str(self.threat),
            date=today(),
            code=computing_code(),
        )
        write_page(Path(path), study_page(study))
        return Path(path)

    def __str__(self) -> str:
        return text_table(list(self._rows()), self._notes())

    def _repr_html_(self) -> str:
        return html_table(list(self._rows()), self._notes())

    def _rows(self) -> Iterator[list[str]]:
        every = list(self.models.values())
        yield ["features under attack", *self.models]
        for name, measure in self._measures().items():
            yield [name, *(measure(one) for one in every)]

    def _measures(self) -> dict[str, Callable[[Analysis], str]]:
        """The rows of the table, with what good looks like."""
        first = next(iter(self.models.values()))
        attack, k = f"PGD-{first.under[0].steps}", first.neighbors.k[0]
        common = self._common()
        return {
            "accuracy, clean, %": lambda one: _share(one.clean),
            f"accuracy, {attack}, %": lambda one: _share(one.under[0].accuracy),
            "r, to the false class (high is good)": lambda one: _number(one.under[0].separation.r.over(common)),
            "r', to the true class (low is good)": lambda one: _number(one.under[0].separation.r_prime.average),
            f"{k}-NN accuracy, clean, %": lambda one: _share(one.neighbors.accuracy[0]),
            f"{k}-NN accuracy, {attack}, %": lambda one: _share(one.under[0].neighbors.accuracy[0]),
            "detection AUC (0.5 is chance)": lambda one: _number(one.under[0].detection.auc),
            "detection AUC, aware attack": lambda one: _number(one.under[0].detection_aware.auc),
            "detected at 5 % FPR": lambda one: _number(one.under[0].detection.at[0.05]),
            "detected at 5 % FPR, aware attack": lambda one: _number(one.under[0].detection_aware.at[0.05]),
            "distance moved (low is good)": lambda one: _number(one.drift.moved[-1]),
            "nearest to the true class mean, %": lambda one: _share(one.drift.home[-1]),
        }

    def _common(self) -> list[int]:
        """The classes into which the attack moved samples of every model, on which r is compared."""
        first, *others = (set(one.under[0].separation.r.known) for one in self.models.values())
        return sorted(first.intersection(*others))

    def _notes(self) -> Iterator[str]:
        one = next(iter(self.models.values()))
        yield (
            f"n = {one.clean.n}, drift of {one.drift.home[0].n}; {self.threat}. Brackets are 95 % intervals: Wilson of "
            "percentages, bootstrap over samples of the others."
        )
        classes, common = len(one.under[0].separation.r.classes), self._common()
        if len(common) < classes:
            yield f"r is the mean over {len(common)} of {classes} classes: no sample was misclassified into the others."
        randomly = [name for name, each in self.models.items() if each.under[0].detection_aware.auc.low <= 0.5]
        if randomly:
            yield f"An attack that knows the detector brings it to chance, or below, for {listed(randomly)}."


def _share(share: Share) -> str:
    return f"{percent(share.value)} [{percent(share.low)}, {percent(share.high)}]"


def _number(estimate: Estimate) -> str:
    return UNKNOWN if estimate.value != estimate.value else str(estimate)
