"""The comparison of two checkouts' speed runs the calls of each in a process of its own."""

import sys
from pathlib import Path

import pytest
import same_speed

CHECKOUT = Path(__file__).parents[2]


def test_both_checkouts_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    class Worker:
        names, facts = ["pgd.mlp, 50", "step.mlp, 50"], "AVX2"

        def __init__(self, checkout: Path) -> None:
            self.checkout, self.taken = checkout.name, 3.0

        def __enter__(self) -> "Worker":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seconds(self, name: str) -> float:
            asked.append(f"{self.checkout} {name}")
            self.taken -= 1 / 2 if self.checkout == "before" else 1 / 4
            return self.taken

    monkeypatch.setattr(same_speed, "Worker", Worker)
    monkeypatch.setattr(sys, "argv", ["same_speed.py", "before", "after", "--only", "pgd", "--turns", "2"])
    same_speed.main()
    assert asked == ["before pgd.mlp, 50", "after pgd.mlp, 50"] * 3  # the first turn is not counted
    assert "| pgd.mlp, 50 | 1.5000 | 2.2500 | 1.500 |" in capsys.readouterr().out


def test_a_worker_times_the_calls_of_its_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # float32 only: no trial of bfloat16, which takes a process more
    with same_speed.Worker(CHECKOUT) as worker:
        assert {name.partition(".")[0] for name in worker.names} == {"pgd", "step"}
        assert worker.seconds("pgd.conv, 50, holdfast") > 0
