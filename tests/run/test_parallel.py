"""Independent trainings and evaluations in several processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.recipes import schema
from holdfast.records.records import Records
from holdfast.run import parallel
from holdfast.run.study import Row, _independent
from tiny_study import table


def test_two_processes_give_the_same_bits_as_one(
    tiny: Path, tmp_path: Path, finished: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    done = call(
        "run", tiny, "--out", tmp_path / "out", "--set", "arithmetic=float32"
    )  # as in the tests of this process
    assert done.code == 0, done.err
    assert "train TLA, seed 1: done (epoch 2: validation" in done.err
    assert "evaluate TLA, seed 1: done" in done.err
    for model in ("plain/seed-0", "TLA/seed-1"):
        alone, beside = finished / "out" / model, tmp_path / "out" / model
        weights = [(folder / "best.safetensors").read_bytes() for folder in (alone, beside)]
        assert weights[0] == weights[1]
        first, second = (Records.load(folder / "records").columns for folder in (alone, beside))
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)


def test_an_error_in_another_process_is_one_sentence(
    tiny: Path, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    folder = tmp_path / "out" / "plain" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "trained.json").write_text("{}")
    done = call("train", tiny, "--out", tmp_path / "out")
    assert done.code == 2
    assert done.err.splitlines()[-1].endswith("holds a model of other settings; choose another --out or remove it")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("threads", "device", "cores", "tasks", "expected"),
    [(1, "cpu", 2, 12, 2), (1, "cpu", 8, 3, 3), (4, "cpu", 6, 12, 1), (None, "cpu", 8, 12, 1), (1, "cuda", 8, 12, 1)],
)
def test_processes_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, device: str, cores: int, tasks: int, expected: int
) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: cores)
    session = SimpleNamespace(recipe=SimpleNamespace(threads=threads), device=torch.device(device))
    assert parallel.processes(session, tasks) == expected


def test_methods_that_start_from_each_other_are_prepared_one_after_another() -> None:
    methods = {
        "A": {"name": "plain"},
        "B": {"name": "plain", "train": {"init_from": "A"}},
        "C": {"name": "plain", "train": {"init_from": "B"}},
        "D": {"name": "plain"},
    }
    recipe = schema.read(table(methods=methods, seeds=[0, 1]))
    rows = [Row("methods", name, seed) for name in methods for seed in (0, 1)]
    groups = [[(row.name, row.seed) for row in group] for group in _independent(recipe, rows)]
    assert groups == [[("A", 0), ("B", 0), ("C", 0)], [("A", 1), ("B", 1), ("C", 1)], [("D", 0)], [("D", 1)]]
