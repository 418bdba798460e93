"""The comparison with the paper: our numbers beside the published ones, and a verdict from the interval."""

import csv
from collections.abc import Mapping

import look_inside
import pytest
import torch
from torch import nn

import holdfast
from holdfast.report.study import Run, analysis_of
from holdfast.rng import Rng
from holdfast.statistics import Estimate


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    y = torch.arange(60) % 3
    x = 0.6 * Rng(0).uniform(torch.empty(60, 12))
    x[torch.arange(60), y] += 0.4
    models = {}
    for name in ("plain", "AT"):
        torch.manual_seed(len(models))
        models[name] = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))
    options = {"gallery": (x, y), "threat": "linf:0.3", "eps": (0.03, 0.3), "steps": (2, 3), "progress": False}
    found = holdfast.analyze(models, x, y, **options)
    return {
        name: Run(name=name, method="own", seed=0, records=one.samples, analysis=one)
        for name, one in found.models.items()
    }


@pytest.fixture(scope="module")
def figures() -> list[Mapping[str, str]]:
    with look_inside.PUBLISHED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_hold_our_numbers_beside_the_published_ones(
    runs: dict[str, Run], figures: list[Mapping[str, str]]
) -> None:
    rows = {row.title: row for row in look_inside._rows(runs, "MNIST", 0.3, figures)}
    assert list(rows) == [
        "Table 2, r at 0.03",
        "Table 3, r' at 0.03",
        "Table 2, r at 0.3",
        "Table 3, r' at 0.3",
        "Table 4, 50-NN, natural, %",
        "Table 4, 50-NN, adv, %, at 0.3",
        "Figure 5, AUC, %, at 0.03",
        "Figure 5, AUC, %, at 0.3",
    ]
    small, large = analysis_of(runs["AT"]).under
    assert rows["Table 3, r' at 0.03"].ours(runs["AT"]) == small.separation.r_prime.average
    assert rows["Table 3, r' at 0.3"].ours(runs["AT"]) == large.separation.r_prime.average
    assert rows["Table 4, 50-NN, adv, %, at 0.3"].ours(runs["AT"]).value == 100 * large.neighbors.accuracy[0].value
    assert rows["Figure 5, AUC, %, at 0.3"].ours(runs["AT"]).value == 100 * large.detection.auc.value
    assert rows["Table 2, r at 0.03"].published["plain"] == 1.485
    assert {"plain", "AT", "ALP", "TLA"} <= set(rows["Figure 5, AUC, %, at 0.3"].published)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.3, "holds"), (-0.1, 0.3, "open"), (-0.3, -0.1, "reversed")]
)
def test_the_interval_of_the_difference_decides(runs: dict[str, Run], low: float, high: float, verdict: str) -> None:
    def difference(first: Run, second: Run) -> Estimate:
        assert (first.name, second.name) == ("AT", "plain")  # the published order
        return Estimate((low + high) / 2, low, high, 60)

    row = look_inside.Row("r", {"plain": 1.0, "AT": 2.0, "TLA": 3.0}, lambda run: Estimate(0, 0, 0, 60), difference)
    ((_, order, gap, _, found),) = look_inside._verdicts(row, runs)
    assert (order, gap, found) == ("AT > plain", "+1", verdict)
