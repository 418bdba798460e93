"""Numbers computed from records: robust accuracy, paired comparisons, accuracy against eps, certified error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from holdfast.records.records import Array, Records
from holdfast.report.elements.table import Cell
from holdfast.report.study import Run, Study, check_same_samples
from holdfast.statistics import Share, holm, mcnemar

_GRID = 21
SIGNIFICANT = 0.05


def worst(records: Records, norm: str, eps: float) -> Share:
    """Robust accuracy against all attacks of a norm: the worst case per sample, not a mean over attacks."""
    return Share.of(records.held(eps, norm))


def robust_accuracy(study: Study) -> dict[str, Cell]:
    """The worst case of each title at the stated norm and eps; empty if the study states none."""
    if study.norm is None or study.eps is None:
        return {}
    norm, eps = study.norm, study.eps
    return {t: Cell(tuple(worst(run.records, norm, eps) for run in runs)) for t, runs in study.attacked().items()}


def clean_accuracy(study: Study) -> dict[str, Cell]:
    """The accuracy of each title without attack."""
    return {t: Cell(tuple(Share.of(run.records.correct) for run in runs)) for t, runs in study.attacked().items()}


def against(records: Records, attack: str, eps: float) -> Share:
    """Robust accuracy against one attack within ``eps``."""
    return Share.of(records.correct & ~records.fooled_within(attack, eps))


@dataclass(frozen=True)
class Comparison:
    """Two models of one seed on the same samples: samples on which only one is robust, and the exact paired test."""

    first: str
    second: str
    seed: int
    only_first: int
    only_second: int
    p: float
    adjusted: float

    @property
    def lead(self) -> int:
        """1 if the first model is significantly more robust, -1 if the second is, else 0."""
        if self.adjusted >= SIGNIFICANT:
            return 0
        return 1 if self.only_first > self.only_second else -1


def compare(study: Study) -> list[Comparison]:
    """Compare each pair of models at each seed they share, in the worst case at the stated eps, with Holm's correction.

    Raises ValueError if two models were not measured on the same samples.
    """
    found = []
    for a_runs, b_runs in combinations(study.attacked().values(), 2):
        partners = {run.seed: run for run in b_runs}
        found += [_paired(study, run, partners[run.seed]) for run in a_runs if run.seed in partners]
    corrected = holm([pair.p for pair in found])
    return [replace(pair, adjusted=p) for pair, p in zip(found, corrected, strict=True)]


def compared(study: Study) -> tuple[list[Comparison], str]:
    """The comparisons of :func:`compare`, or none and the sentence that says why they are refused."""
    try:
        return compare(study), ""
    except ValueError as refusal:
        return [], f"{refusal}."


def _paired(study: Study, a: Run, b: Run) -> Comparison:
    check_same_samples(a.records, b.records)
    a_held, b_held = (run.records.held(study.eps or 0.0, study.norm or "") for run in (a, b))
    only_a, only_b = int((a_held & ~b_held).sum()), int((b_held & ~a_held).sum())
    p = mcnemar(a_held, b_held)
    return Comparison(a.title, b.title, a.seed, only_a, only_b, p, p)


@dataclass(frozen=True)
class Point:
    """Robust accuracy of all seeds at one eps; if some seed was not attacked there it is an upper bound."""

    eps: float
    cell: Cell
    measured: bool


def curve_grid(records: Sequence[Records], norm: str) -> list[float]:
    """Where to evaluate accuracy against eps: zero, the eps of every attack, and an even grid up to the largest."""
    attacks = [(r, name, a) for r in records for name, a in r.attacks.items() if a.norm == norm]
    run_at = {a.eps for _, _, a in attacks if math.isfinite(a.eps)}
    reached = {_farthest(r, name) for r, name, a in attacks if math.isinf(a.eps)}
    top = max(run_at | reached, default=0.0)
    return sorted({0.0, *run_at, *np.linspace(0, top, _GRID).tolist()})


def _farthest(records: Records, name: str) -> float:
    distance = records.columns[f"distance:{records.attacks[name].norm}:{name}"]
    fooled = distance[records.fooled_within(name, math.inf) & np.isfinite(distance)]
    return float(fooled.max(initial=0.0))


def curve(records: Sequence[Records], norm: str, grid: Sequence[float]) -> list[Point]:
    """Robust accuracy at each eps of ``grid``, over the records of all seeds of a method."""
    return [
        Point(eps, Cell(tuple(worst(r, norm, eps) for r in records)), all(r.measured(eps, norm) for r in records))
        for eps in grid
    ]


def bounds(records: Records, certificate: str) -> tuple[Array, Array]:
    """The certified radius of each sample and the length of its shortest verified adversarial perturbation.

    Perturbations are those of the certifier and those of all attacks in its norm, unless it certifies another
    classifier than the one that was attacked.
    """
    for kind in ("radius", "upper"):
        if f"{kind}:{certificate}" not in records.columns:
            raise ValueError(f"records lack the column '{kind}:{certificate}' of a certificate; certify again")
    upper = records.columns[f"upper:{certificate}"]
    if of_another(records, certificate):
        return records.columns[f"radius:{certificate}"], upper
    for name, attack in records.attacks.items():
        if attack.norm == certificate.partition(":")[0]:
            reach = np.minimum(records.columns[f"distance:{attack.norm}:{name}"], attack.eps)
            upper = np.where(records.fooled_within(name, math.inf), np.minimum(upper, reach), upper)
    return records.columns[f"radius:{certificate}"], upper


def certified_error(records: Records, certificate: str, radius: float) -> Share:
    """The share that is misclassified or not proved robust within ``radius``: never below the true robust error."""
    proved, _ = bounds(records, certificate)
    closed = records.certificates.get(certificate.partition(":")[2], {}).get("closed", False)
    holds = proved >= radius if closed else (proved > radius) | (radius == 0)
    return Share.of(~(_correct(records, certificate) & holds))


def empirical_error(records: Records, certificate: str, radius: float) -> Share:
    """The share that is misclassified or has a verified adversarial example within ``radius``.

    It is never above the true robust error.
    """
    _, upper = bounds(records, certificate)
    return Share.of(~(_correct(records, certificate) & ((upper > radius) | (radius == 0))))


def of_another(records: Records, certificate: str) -> bool:
    """True if a certificate is of another classifier than the one that was attacked, such as a smoothed network."""
    return f"prediction:{certificate}" in records.columns


def certificate_facts(runs: Sequence[Run], certificate: str, key: str) -> list[Any]:
    """The distinct values of a fact of a certificate ``<norm>:<certifier>``."""
    _, _, name = certificate.partition(":")
    found = (run.records.certificates.get(name, {}).get(key) for run in runs)
    return [value for value in dict.fromkeys(found) if value is not None]


def abstained(records: Records, certificate: str) -> Share:
    """The share on which the certified classifier abstains."""
    return Share.of(records.columns[f"prediction:{certificate}"] == -1)


def _correct(records: Records, certificate: str) -> Array:
    """Which samples the certified classifier classifies correctly; an abstention is an error."""
    if of_another(records, certificate):
        return np.asarray(records.columns[f"prediction:{certificate}"] == records.columns["y"])
    return records.correct


def proved(runs: Sequence[Run], certificate: str, radius: float) -> Cell:
    """The share of samples that are classified correctly and proved to stay so within ``radius``, for each seed."""
    errors = [certified_error(run.records, certificate, radius) for run in runs]
    return Cell(tuple(Share(error.n - error.successes, error.n) for error in errors))
