"""The pure parts of the benchmarks: the test they decide by, how they time, what they do without a peer."""

import json

import numpy as np
import pytest
import torch
from bench import peers
from bench.ablation import replaced
from bench.budgets import BUDGETS, FULL, QUICK
from bench.peers import Peer, passes
from bench.speed import flops
from bench.strength import one_sided
from bench.subjects import SUBJECTS, fitted
from bench.table import markdown, rows
from bench.timing import Times, interleaved, machine, peak_memory
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import nn

import attacks
from holdfast import PGD, LInf, Rng, Threat, data
from holdfast.crafting import folding


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_one_sided_is_the_exact_binomial_test(only_first: int, only_second: int, both: int) -> None:
    first = np.array([True] * only_first + [False] * only_second + [True] * both, dtype=bool)
    second = np.array([False] * only_first + [True] * only_second + [True] * both, dtype=bool)
    n = only_first + only_second
    expected = binomtest(only_first, n, 0.5, alternative="greater").pvalue if n else 1.0
    assert one_sided(first, second) == pytest.approx(expected)


def test_contestants_take_turns_and_each_turn_begins_with_another() -> None:
    calls: list[str] = []
    times = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, 3)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert [len(times.seconds[name]) for name in "abc"] == [3, 3, 3]


def test_slow_contestants_get_three_turns() -> None:
    assert len(interleaved({"slow": lambda: None}, 20, seconds=-1).seconds["slow"]) == 3
    assert len(interleaved({"slow": lambda: None}, 2, seconds=-1).seconds["slow"]) == 2


def test_contestants_that_fail_are_left_out() -> None:
    def fails() -> None:
        raise RuntimeError("operator does not exist\nmore")

    times = interleaved({"good": lambda: None, "bad": fails}, 2)
    assert list(times.seconds) == ["good"]
    assert times.failed == {"bad": "RuntimeError: operator does not exist"}


def test_ratio_is_of_the_medians_with_the_range_of_the_turns() -> None:
    times = Times({"ours": [1.0, 2.0, 4.0], "peer": [3.0, 5.0, 8.0]})
    assert times.ratio("peer", "ours") == {"ratio": 2.5, "lowest": 2.0, "highest": 3.0}
    assert times.fastest({"peer"}) == "peer"
    assert times.fastest({"nobody"}) is None


def test_a_peer_that_does_not_import_is_absent_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> peers.Pgd:
        raise RuntimeError("operator torchvision::nms does not exist")

    known = {"broken": Peer("broken", broken), "works": Peer("torch", lambda: peers.ours)}
    monkeypatch.setattr(peers, "PEERS", known)
    field = peers.field.__wrapped__()
    assert dict(field.present) == {"works": peers.ours}
    assert field.absent == {"broken": "RuntimeError: operator torchvision::nms does not exist"}
    assert json.dumps(field.facts())


def test_stand_ins_leave_nothing_behind() -> None:
    import sys

    with peers._stand_ins("visdom_of_nobody", "visdom_of_nobody.plots"):
        import visdom_of_nobody

        assert visdom_of_nobody.plots.__name__ == "visdom_of_nobody.plots"
    assert not [name for name in sys.modules if name.startswith("visdom_of_nobody")]


def test_ours_is_holdfast_pgd_and_takes_every_step(rng: Rng) -> None:
    model, x, y = (
        nn.Sequential(nn.Flatten(), nn.Linear(9, 3)),
        rng.uniform(torch.empty(5, 1, 3, 3)),
        torch.arange(5) % 3,
    )
    expected = PGD(threat=Threat(LInf(), 0.1), steps=7, step=0.02, keep="last")(model, x, y, rng=Rng(0))
    assert torch.equal(peers.ours(model, x, y, 0.1, 0.02, 7), expected)
    assert passes(peers.ours, model, x, y, 0.1, 0.02, 7) == {"forwards": 7.0, "backwards": 7.0}


def test_flops_of_linear_layers_are_two_per_weight_and_pass(rng: Rng) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 6, bias=False), nn.Linear(6, 3, bias=False))
    x, y = rng.uniform(torch.empty(5, 1, 3, 3)), torch.zeros(5, dtype=torch.int64)
    assert flops(model, x, y) == 2 * 2 * 5 * (9 * 6 + 6 * 3)


def test_images_of_any_source_get_the_shape_of_the_subject() -> None:
    digits = data.load("digits", valid=0.2)
    for shape in ((1, 28, 28), (3, 32, 32)):
        found = fitted(digits, shape)
        assert found.shape == shape
        assert found.test.batch(torch.arange(3)).x.aminmax() == digits.test.batch(torch.arange(3)).x.aminmax()
    padded = fitted(fitted(digits, (1, 28, 28)), (3, 32, 32)).test.x
    assert torch.equal(padded[:, 1, 2:-2, 2:-2], fitted(digits, (1, 28, 28)).test.x[:, 0])


def test_a_name_is_replaced_only_for_the_context() -> None:
    before = folding.folded
    with replaced(folding, "folded", lambda model: "turned off"):
        assert folding.folded(nn.Linear(1, 1)) == "turned off"
    assert folding.folded is before
    with pytest.raises(AttributeError), replaced(folding, "no_such_name", None):
        pass


def test_every_budget_knows_every_subject() -> None:
    assert all(set(budget.sizes) == set(SUBJECTS) for budget in BUDGETS.values())
    assert QUICK.repeats >= 5
    assert FULL.repeats >= 5
    units = attacks._units(QUICK, None)
    assert "pgd.lenet" in units
    assert "trained.mlp" not in units
    assert attacks._units(QUICK, ["trained", "pgd.conv"]) == ["pgd.conv", "trained.mlp"]
    assert "trained.mlp" in attacks._units(FULL, None)


def test_a_figure_of_other_code_or_settings_is_not_taken_for_measured(tmp_path) -> None:
    path = tmp_path / "pgd.mlp.json"
    assert attacks._stored(path, "new") is None
    path.write_text('{"key": "old"}')
    assert attacks._stored(path, "new") is None
    assert attacks._stored(path, "old") == {"key": "old"}
    path.write_text('{"key": "ol')
    assert attacks._stored(path, "old") is None


def test_table_has_a_row_per_claim_and_hides_single_times() -> None:
    line = {"what": "mlp: times as fast", "value": 1.23456, "wanted": ">= 1.15", "met": True}
    facts = {"n": [50, 250], "threads": 2, "bf16": [], "absent": {"foolbox": "ImportError: no"}}
    result = {"facts": facts, "rows": [{"library": "holdfast", "seconds": [1.0, 2.0]}], "headlines": [line]}
    text = markdown({"pgd.mlp": result}, {"pgd": "PGD", "share": "Share"}, "abc")
    assert "| pgd.mlp | mlp: times as fast | 1.235 | >= 1.15 | yes |" in text
    assert "**mlp**: n 50/250, threads 2, bf16 none" in text
    assert "| library |\n| --- |\n| holdfast |" in text
    assert "foolbox took no part: ImportError: no" in text
    assert "## Share" not in text
    assert rows([{"a": 1}, {"b": 2}]) == ["| a | b |", "| --- | --- |", "| 1 |  |", "|  | 2 |"]


def test_the_machine_is_described_and_memory_grows_with_use() -> None:
    facts = machine()
    assert {"torch", "threads", "avx512", "bf16", "processor", "in force"} <= facts.keys()
    assert torch.backends.cpu.get_cpu_capability() in facts["in force"]
    assert json.dumps(facts)
    before = peak_memory()
    assert before > 2**20
    kept = torch.ones(1 << 26)  # 256 MB, beyond what other tests left free
    assert peak_memory() >= max(before, kept.nbytes)


def test_full_goes_on_with_what_is_missing_and_quick_measures_anew(tmp_path, monkeypatch, capsys) -> None:
    begun: list[str] = []

    def measure(bench, name: str) -> dict:
        begun.append(name)
        if begun == ["mlp", "lenet"]:
            raise RuntimeError("stopped")
        return {"facts": {"n": 1}, "rows": [{"a": 1}], "headlines": []}

    monkeypatch.setattr(attacks, "FIGURES", {"fake": attacks.Figure("Fake", measure, ("mlp", "lenet"))})
    monkeypatch.setattr(attacks, "field", lambda: peers.Field({}, {}))
    monkeypatch.setattr("sys.argv", ["attacks.py", "--quick", "--full", "--out", str(tmp_path)])
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    assert attacks.main() == 1
    printed = capsys.readouterr()
    assert "HOLDFAST_DATA is not set, so every model is measured on digits" in printed.out
    assert "fake.lenet: failed, RuntimeError: stopped (all of it in " in printed.out
    assert "Traceback" not in printed.out + printed.err
    assert "Traceback" in (tmp_path / "full" / "fake.lenet.error.txt").read_text()
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    assert attacks.main() == 0
    assert "HOLDFAST_DATA" not in capsys.readouterr().out
    assert begun == ["mlp", "lenet", "lenet"]
    assert "**lenet**: n 1" in (tmp_path / "full" / "table.md").read_text()
    monkeypatch.setattr("sys.argv", ["attacks.py", "--out", str(tmp_path)])
    assert attacks.main() == attacks.main() == 0
    assert begun[3:] == ["mlp", "lenet"] * 2
