"""The parts of the benchmark of methods: passes counted and priced, bounds, and the script itself."""

import json
from collections import Counter
from math import exp, log

import pytest
import torch
from bench import defenses
from bench.passes import counted, predicted
from bench.subjects import Subject
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import methods
from holdfast import Batch, Rng
from holdfast.models.classifier import Classifier
from holdfast.models.heads.hypersphere import Hypersphere

EXPECTED = {
    "plain": {"train": 1},
    "AT": {"craft": 4, "train": 1},
    "ALP": {"craft": 4, "train": 2},
    "TRADES": {"look": 1, "craft": 4, "train": 2},
    "LLR": {"twice": 1, "craft": 4, "train": 1},
    "LLR-2": {"twice": 1, "craft": 2, "train": 1},
    "CURE": {"train": 1, "twice": 2},
    "TLA": {"craft": 4, "train": 3, "look": 2},
    "TRADES+triplet": {"look": 3, "craft": 4, "train": 4},
    "AT+HE": {"craft": 4, "train": 1},
    "ALP+HE": {"craft": 4, "train": 2},
    "TRADES+HE": {"look": 1, "craft": 4, "train": 2},
}


@pytest.fixture
def chosen():
    return defenses.methods(Subject("toy", "mlp", 0.1, 2, (6,), ("toy",)), 4)


@pytest.fixture
def batch(rng: Rng) -> Batch:
    x, y = rng.uniform(torch.empty(100, 6)), torch.arange(100) % 3
    pool = Batch(x[50:], y[50:], torch.arange(50) + 50)
    return Batch(x[:50], y[:50], torch.arange(50), x[:50].flip(0), pool)


def network(head: str) -> Classifier:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    return Classifier(body, Hypersphere(5, 3) if head == "hypersphere" else nn.Linear(5, 3))


def test_passes_are_counted_by_kind(chosen, batch: Batch) -> None:
    assert chosen.keys() == EXPECTED.keys()
    for who, (method, head) in chosen.items():
        assert counted(network(head), method, batch) == EXPECTED[who], who


def test_counts_agree_with_what_methods_say_of_their_cost(chosen, batch: Batch) -> None:
    """A pass there and back twice is one forward and three backwards."""
    for who, (method, head) in chosen.items():
        count = Counter(EXPECTED[who])
        cost = method(network(head), batch, progress=1.0, rng=Rng(0)).cost
        assert cost.forwards == 50 * sum(count.values()), who
        assert cost.backwards == 50 * (count["craft"] + count["train"] + 3 * count["twice"]), who


def test_a_prediction_is_passes_at_their_price_and_one_update() -> None:
    seconds = {"look": 1.0, "craft": 20.0, "train": 3.0, "twice": 6.0, "update": 0.5}
    assert predicted(Counter({"craft": 10, "train": 1}), seconds, 10) == 0.5 + 10 * 2 + 3
    assert predicted(Counter({"look": 2, "twice": 1}), seconds, 10) == 0.5 + 2 + 6


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=20), st.floats(0.1, 10))
def test_the_bound_is_above_the_geometric_mean_and_scales(ratios: list[float], factor: float) -> None:
    middle, most = defenses.upper(ratios)
    assert middle == pytest.approx(exp(sum(map(log, ratios)) / len(ratios)))
    assert most >= middle * (1 - 1e-12)
    assert defenses.upper([factor * ratio for ratio in ratios]) == pytest.approx((factor * middle, factor * most))


def test_the_bound_holds_as_often_as_it_says(rng: Rng) -> None:
    draws = 0.05 * rng.normal(torch.empty(400, 30, dtype=torch.float64))
    held = sum(defenses.upper(row.exp().tolist())[1] >= 1 for row in draws)
    assert 0.91 <= held / 400 <= 0.98


def test_the_script_writes_a_file_per_figure_and_a_table(tmp_path, monkeypatch, capsys) -> None:
    def measure(bench, name: str) -> dict:
        line = {"what": f"{name}: times AT", "value": 1.5, "wanted": "<= 2", "met": True}
        return {"facts": {"n": 1}, "rows": [{"method": "AT", "seconds": [1.0]}], "headlines": [line]}

    figures = {"a": methods.Figure("A", measure, ("mlp", "conv")), "b": methods.Figure("B", measure, ("mlp",))}
    monkeypatch.setattr(methods, "FIGURES", figures)
    monkeypatch.setattr("sys.argv", ["methods.py", "--tiny", "--only", "a.conv", "--only", "b", "--out", str(tmp_path)])
    assert methods.main() == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.conv.json", "b.mlp.json", "table.md"]
    assert json.loads((tmp_path / "b.mlp.json").read_text())["facts"]["budget"] == "tiny"
    assert "| a.conv | conv: times AT | 1.5 | <= 2 | yes |" in (tmp_path / "table.md").read_text()
