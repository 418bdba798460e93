"""Compares what features do under attack with Tables 2, 3 and 4 and Figure 5 of Mao et al. (2019), order by order.

python benchmarks/look_inside.py RUN [...] [--published FILE] [--markdown FILE]

RUN is a folder of results that `holdfast run` has written for a recipe with [analyze], such as runs/mnist-mlp-small.
FILE holds the published figures, with the columns paper, table, dataset, method, attack_or_metric, setting and value;
by default look_inside.csv beside this script.
Prints a Markdown page. An order of two methods holds if the 95 % interval of our difference, paired by sample, lies on
the published side of zero, is reversed if it lies on the other side, and is open otherwise.
"""

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from pathlib import Path

import numpy as np

from holdfast.geometry import eps_text
from holdfast.recipes import schema
from holdfast.recipes.schema import Recipe
from holdfast.records.files import write_text
from holdfast.records.records import Mask
from holdfast.report.analysis import Analysis
from holdfast.report.elements.table import listing, markdown_table, share_text
from holdfast.report.ratios import common_classes, difference, ratio, separated
from holdfast.report.study import Run, analysis_of
from holdfast.run.study import study_of
from holdfast.statistics import Estimate, Share

PUBLISHED = Path(__file__).with_suffix(".csv")
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
UNDEFENDED = "UM"  # the paper's name of our "plain"

Number = Callable[[Run], Estimate]
Difference = Callable[[Run, Run], Estimate | None]


@dataclass(frozen=True)
class Row:
    """A published row of numbers, one for each method, and how ours and their differences are computed."""

    title: str
    published: Mapping[str, float]
    ours: Number
    difference: Difference
    digits: int = 3


def main() -> None:
    """Print the comparison, and write it if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--published", type=Path, default=PUBLISHED)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    if not asked.published.is_file():
        raise SystemExit(f"there is no file {asked.published}; name the published figures with --published")
    with asked.published.open(encoding="utf-8", newline="") as file:
        figures = list(csv.DictReader(file))
    text = "\n\n".join(_page(asked.runs, figures)) + "\n"
    print(text)
    if asked.markdown is not None:
        write_text(asked.markdown, text)


def _page(names: Sequence[str], figures: Sequence[Mapping[str, str]]) -> Iterator[str]:
    call = "benchmarks/look_inside.py " + " ".join(f"runs/{schema.load(name).name}" for name in names)
    yield "# Features under attack, beside the paper"
    yield (
        "Mao et al. (2019) measure how far adversarial features are from the false class (r, Table 2; high is good) "
        "and from the true class (r', Table 3; low is good), nearest neighbors (Table 4) and the detection of "
        "misclassified samples (Figure 5). Here the published order of every two methods is compared with ours: it "
        "holds if the 95 % interval of our difference, paired by sample, lies on the published side of zero, is "
        "reversed if it lies on the other side, and is open otherwise."
    )
    yield (
        "Networks and budgets are smaller than the paper's (a modified LeNet and a wide ResNet), so this does not say "
        "that a published number is wrong, only whether its order is also found here. Intervals are those of samples: "
        "one seed does not show how much a retrained model would differ. The paper does not say at which level Table 4 "
        "was measured; the eps of the threat is used here. The caption of Figure 5 names two levels; both are shown."
    )
    yield f"Made by `python {call}`; the page of each recipe has the models and the attacks."
    for name in names:
        yield from _recipe(name, figures)


def _recipe(name: str, figures: Sequence[Mapping[str, str]]) -> Iterator[str]:
    recipe = schema.load(name)
    if recipe.data.name not in DATA:
        raise SystemExit(f"{name} is on {recipe.data.name}, but the figures are of {' and '.join(DATA)}; leave it out")
    study = study_of(recipe, recipe.default_out)
    yield f"## {recipe.name}"
    for seed in sorted({run.seed for run in study.runs}):
        runs = {run.name: run for run in study.runs if run.analysis is not None and run.seed == seed}
        if len(runs) < 2:
            raise SystemExit(f"{name} has no analysis of two models of seed {seed}; run `holdfast analyze {name}`")
        yield from _seed(recipe, seed, runs, figures)


def _seed(recipe: Recipe, seed: int, runs: Mapping[str, Run], figures: Sequence[Mapping[str, str]]) -> Iterator[str]:
    rows = list(_rows(runs, DATA[recipe.data.name], recipe.threat.eps if recipe.threat else 0.0, figures))
    first = analysis_of(next(iter(runs.values())))
    yield f"### Seed {seed}"
    yield (
        f"n = {len(first.samples)} samples; "
        + ", ".join(one.name for one in first.under)
        + ". Cells: published / ours [95 % interval]."
    )
    known = [method for method in runs if any(method in row.published for row in rows)]
    yield markdown_table(listing(["Row", *known], [_cells(row, runs, known) for row in rows]))
    verdicts = [verdict for row in rows for verdict in _verdicts(row, runs)]
    yield markdown_table(listing(["Row", "Published order", "Published", "Ours [95 %]", "Verdict"], verdicts))
    counts = {kind: sum(verdict[-1] == kind for verdict in verdicts) for kind in ("holds", "open", "reversed")}
    yield (
        f"Of {len(verdicts)} published orders {counts['holds']} hold, {counts['open']} are open and "
        f"{counts['reversed']} are reversed."
    )
    yield from _beside(runs)
    yield from _aware(runs)


def _rows(runs: Mapping[str, Run], data: str, eps: float, figures: Sequence[Mapping[str, str]]) -> Iterator[Row]:
    first = analysis_of(next(iter(runs.values())))
    for level, under in enumerate(first.under):
        classes = common_classes(list(runs.values()), level)
        setting = f"Linf eps={eps_text(under.eps)}"
        for table, symbol, kind in (("Table 2", "r", "r"), ("Table 3", "r'", "r_prime")):
            published = _published(figures, table, data, setting=setting)
            yield Row(
                f"{table}, {symbol} at {eps_text(under.eps)}",
                published,
                lambda run, level=level, kind=kind, classes=classes: _ratio(run, level, kind, classes),
                lambda a, b, level=level, kind=kind: difference(a, b, level, kind),
            )
    at = next((number for number, under in enumerate(first.under) if under.eps == eps), len(first.under) - 1)
    for word, level in (("natural", None), ("adv", at)):
        published = _published(figures, "Table 4", data, metric=f"({word})")
        yield Row(
            f"Table 4, 50-NN, {word}, %" + ("" if level is None else f", at {eps_text(first.under[at].eps)}"),
            published,
            lambda run, level=level: _scaled(_neighbors(analysis_of(run), level), 100),
            lambda a, b, level=level: _scaled(_closer(analysis_of(a), analysis_of(b), level), 100),
            digits=1,
        )
    for level, under in enumerate(first.under):
        yield Row(
            f"Figure 5, AUC, %, at {eps_text(under.eps)}",
            _published(figures, "Figure 5", data),
            lambda run, level=level: _scaled(analysis_of(run).under[level].detection.auc, 100),
            lambda a, b, level=level: _scaled(
                analysis_of(a).under[level].detection.minus(analysis_of(b).under[level].detection), 100
            ),
            digits=1,
        )


def _published(
    figures: Sequence[Mapping[str, str]], table: str, data: str, setting: str = "", metric: str = ""
) -> dict[str, float]:
    """The published figures of a row by our names of the methods."""
    return {
        "plain" if one["method"] == UNDEFENDED else one["method"]: float(one["value"])
        for one in figures
        if one["table"].startswith(table)
        and one["paper"].startswith("TLA")
        and one["dataset"] == data
        and one["setting"].endswith(setting)
        and metric in one["attack_or_metric"]
    }


def _ratio(run: Run, level: int, kind: str, classes: Sequence[int]) -> Estimate:
    found = ratio(run, level, kind)
    if found is None:
        return Estimate(np.nan, np.nan, np.nan, 0)
    return found.over(classes) if kind == "r" else found.average


def _neighbors(of: Analysis, level: int | None) -> Estimate:
    """K-NN accuracy, with the interval of the page."""
    share = Share.of(_voted(of, level))
    return Estimate(share.value, share.low, share.high, share.n)


def _closer(of: Analysis, other: Analysis, level: int | None) -> Estimate:
    """The difference of the K-NN accuracy to that of another model, paired by sample."""
    return Estimate.mean(_voted(of, level).astype(float) - _voted(other, level))


def _voted(of: Analysis, level: int | None) -> Mask:
    """Whether the nearest neighbors of each sample vote for its class."""
    found = of.neighbors if level is None else of.under[level].neighbors
    return np.asarray(found.votes[:, 0] == of.y)


def _scaled(found: Estimate, by: float) -> Estimate:
    return Estimate(by * found.value, by * found.low, by * found.high, found.n)


def _cells(row: Row, runs: Mapping[str, Run], known: Sequence[str]) -> list[str]:
    found = [(row.published.get(method), row.ours(runs[method])) for method in known]
    return [row.title, *(f"{_number(paper)} / {_text(ours, row.digits)}" for paper, ours in found)]


def _verdicts(row: Row, runs: Mapping[str, Run]) -> Iterator[list[str]]:
    """The published order of every two methods, the better one first, and whether ours agrees."""
    for pair in combinations([method for method in row.published if method in runs], 2):
        high, low = sorted(pair, key=lambda method: -row.published[method])
        gap, ours = row.published[high] - row.published[low], row.difference(runs[high], runs[low])
        if gap == 0 or ours is None or not isfinite(ours.value):
            continue
        verdict = "holds" if ours.low > 0 else "reversed" if ours.high < 0 else "open"
        yield [row.title, f"{high} > {low}", f"{gap:+.3g}", _text(ours, row.digits, "+"), verdict]


def _beside(runs: Mapping[str, Run]) -> Iterator[str]:
    """What the ratios have to be read beside: accuracy under the same attacks, and what they divide by."""
    first = analysis_of(next(iter(runs.values())))
    titles = ["", *(f"accuracy, {one.name}, %" for one in first.under), "distance within a class, no attack"]
    rows = []
    for name, run in runs.items():
        found, ratios = analysis_of(run), separated(run, 0)
        shares = [share_text(under.accuracy) for under in found.under]
        rows.append([name, *shares, "-" if ratios is None else _text(ratios.within, 3)])
    yield (
        "r and r' say where features end, not how many samples hold, and both divide by the mean distance within a "
        "class: where that is small, r can be high although adversarial examples are near the false class."
    )
    yield markdown_table(listing(titles, rows))


def _aware(runs: Mapping[str, Run]) -> Iterator[str]:
    """The AUC under the attack that knows the detector, which the paper does not have."""
    levels = range(len(analysis_of(next(iter(runs.values()))).under))
    first = analysis_of(next(iter(runs.values())))
    titles = ["AUC, %", *(f"{kind}, {first.under[level].name}" for level in levels for kind in ("blind", "aware"))]
    rows = []
    for name, run in runs.items():
        under = [analysis_of(run).under[level] for level in levels]
        rows.append(
            [
                name,
                *(_text(_scaled(auc, 100), 1) for one in under for auc in (one.detection.auc, one.detection_aware.auc)),
            ]
        )
    yield "Detection under an attack that knows the detector (not in the paper):"
    yield markdown_table(listing(titles, rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _text(found: Estimate, digits: int, sign: str = "") -> str:
    if not isfinite(found.value):
        return "-"
    return f"{found.value:{sign}.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


if __name__ == "__main__":
    main()
