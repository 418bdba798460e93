"""Early stopping when validation accuracy does not improve, also after interruptions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.data import DataSet
from holdfast.recipes.tables.train import SWAConfig
from holdfast.records import snapshot
from holdfast.training import loop
from holdfast.training.loop import train
from tiny_study import FABRIC, bits, run_job, same, toy_job

SetAccuracies = Callable[..., Iterator[tuple[float, float]]]


@pytest.fixture
def set_accuracies(monkeypatch: pytest.MonkeyPatch) -> SetAccuracies:
    """Set the (clean, robust) accuracies of the following epochs."""

    def set_next(*accuracies: tuple[float, float]) -> Iterator[tuple[float, float]]:
        left = iter(accuracies)
        monkeypatch.setattr(loop, "accuracy", lambda *_: next(left))
        return left

    return set_next


ROBUST = ((0.1, 0.1), (0.2, 0.3), (0.3, 0.3), (0.4, 0.2), (0.5, 0.9))


@pytest.mark.parametrize(
    ("select", "patience", "ran", "best", "ended"),
    [
        ("robust", 1, 3, 2, "patience"),
        ("robust", 2, 4, 2, "patience"),  # the third is equal, not better
        ("robust", 3, 5, 5, "epochs"),
        ("clean", 1, 5, 5, "epochs"),
    ],
)
def test_training_stops_after_patience_epochs(
    tmp_path: Path,
    toys: DataSet,
    set_accuracies: SetAccuracies,
    select: str,
    patience: int,
    ran: int,
    best: int,
    ended: str,
) -> None:
    set_accuracies(*ROBUST)
    job = run_job(toy_job(tmp_path / "a", epochs=5, select=select, patience=patience), toys)
    trained = bits(job.folder)["trained"]
    assert (trained["epochs"], trained["steps"], trained["ended"]) == (ran, 3 * ran, ended)
    assert trained["best_epoch"] == best
    assert snapshot.read(job.folder / "last.safetensors")[1] == {"epoch": ran}
    set_accuracies(*ROBUST)
    whole = run_job(toy_job(tmp_path / "b", epochs=ran, select=select), toys)
    for name in ("best", "last"):
        first, second = (snapshot.read(folder / f"{name}.safetensors")[0] for folder in (job.folder, whole.folder))
        assert same(first, second)


@pytest.mark.parametrize("stops", [(12,), (1, 5, 6, 7, 11, 12)])
def test_resumed_run_ends_at_the_same_epoch(
    tmp_path: Path, toys: DataSet, set_accuracies: SetAccuracies, stops: tuple[int, ...]
) -> None:
    set_accuracies(*ROBUST)
    whole = bits(run_job(toy_job(tmp_path / "whole", epochs=5, patience=2), toys).folder)
    left = set_accuracies(*ROBUST)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            run_job(toy_job(tmp_path / "parts", epochs=5, patience=2), toys, stop_at=stop)
    assert not (tmp_path / "parts" / "trained.json").exists()
    assert bits(run_job(toy_job(tmp_path / "parts", epochs=5, patience=2), toys).folder) == whole
    assert list(left) == [ROBUST[-1]]  # the fifth epoch was never trained


def test_early_end_is_reported_as_finished(tmp_path: Path, toys: DataSet, set_accuracies: SetAccuracies) -> None:
    set_accuracies(*ROBUST)
    seen: list[tuple[int, int]] = []
    train(
        toy_job(tmp_path / "a", epochs=5, patience=1), toys, FABRIC, lambda done, total, _: seen.append((done, total))
    )
    assert seen == [*((step, 15) for step in range(1, 9)), (9, 9)]


def test_patience_counts_from_the_first_selectable_epoch(
    tmp_path: Path, toys: DataSet, set_accuracies: SetAccuracies
) -> None:
    set_accuracies(*[(0.5, 0.5)] * 8)
    job = run_job(toy_job(tmp_path / "a", epochs=8, swa=SWAConfig(start=0.5), patience=2), toys)
    trained = json.loads((job.folder / "trained.json").read_text())
    assert (trained["best_epoch"], trained["epochs"], trained["ended"]) == (5, 7, "patience")
