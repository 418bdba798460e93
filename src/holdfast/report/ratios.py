"""The ratios r and r' of several models, compared on the classes and samples that they share."""

from collections.abc import Sequence

from holdfast.analysis.separation import Ratio, Separation
from holdfast.report.analysis import Analysis
from holdfast.report.study import Run, analysis_of, check_same_samples
from holdfast.statistics import Estimate


def separated(run: Run, level: int) -> Separation | None:
    """r and r' of a model at a level; None where features of a class all have one direction."""
    try:
        return analysis_of(run).under[level].separation
    except ValueError:
        return None


def ratio(run: Run, level: int, kind: str) -> Ratio | None:
    """r or r' of a model at a level; None where features of a class all have one direction."""
    found = separated(run, level)
    return None if found is None else found.r if kind == "r" else found.r_prime


def common_classes(runs: Sequence[Run], level: int) -> list[int]:
    """The classes into which the attack moved samples of every model; models are compared on these."""
    known = [set(one.known) for run in runs if (one := ratio(run, level, "r")) is not None and one.known]
    return sorted(set.intersection(*known)) if known else []


def difference(a: Run, b: Run, level: int, kind: str) -> Estimate | None:
    """The difference of r or r' of two models, on the classes that both have; None if one of them has none, or if they
    were measured on other samples."""
    first, second = ratio(a, level, kind), ratio(b, level, kind)
    if first is None or second is None or not same_samples(analysis_of(a), analysis_of(b)):
        return None
    return first.minus(second)


def same_samples(a: Analysis, b: Analysis) -> bool:
    """True if two models were analyzed on the same samples, and the same of them followed."""
    try:
        check_same_samples(a.samples, b.samples)
        check_same_samples(a.followed, b.followed)
    except ValueError:
        return False
    return True
