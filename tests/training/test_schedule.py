"""Learning rate schedules: closed forms, and resuming."""

from math import cos, pi
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.data import DataSet
from holdfast.recipes.tables.train import OptimizerConfig, ScheduleConfig, TrainConfig
from holdfast.training.optimizer import scheduled
from tiny_study import run_job, toy_job

STEPS, EPOCHS, RATE = 5, 4, 0.2
CONFIGS = [
    ScheduleConfig(),
    ScheduleConfig(name="step", at=(1, 2.5), gamma=0.1),
    ScheduleConfig(name="cosine"),
    ScheduleConfig(name="one_cycle"),
    ScheduleConfig(name="one_cycle", warmup=0.5),
]


def rates(schedule: ScheduleConfig, done: int = 0) -> list[float]:
    """The learning rate of this step and all that follow."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=RATE)
    config = TrainConfig(epochs=EPOCHS, schedule=schedule, optimizer=OptimizerConfig(name="sgd", lr=RATE))
    scheduler, seen = scheduled(config, optimizer, STEPS, done), []
    for step in range(done, STEPS * EPOCHS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < STEPS * EPOCHS:
            scheduler.step()
    return seen


def between(start: float, end: float, share: float) -> float:
    """Cosine interpolation."""
    return end + (start - end) * (1 + cos(pi * share)) / 2


def one_cycle(step: int, total: int, warmup: float) -> float:
    top, last = warmup * total - 1, total - 1
    low, end = RATE / 25, RATE / 25e4
    return between(low, RATE, step / top) if step <= top else between(RATE, end, (step - top) / (last - top))


def test_learning_rates_equal_their_closed_forms() -> None:
    total = STEPS * EPOCHS
    by_hand = {
        0: [RATE] * total,
        1: [RATE] * 5 + [RATE / 10] * 8 + [RATE / 100] * 7,  # 2.5 epochs are 12.5 steps
        2: [between(RATE, 0, step / total) for step in range(total)],
        3: [one_cycle(step, total, 0.3) for step in range(total)],
        4: [one_cycle(step, total, 0.5) for step in range(total)],
    }
    for number, expected in by_hand.items():
        assert rates(CONFIGS[number]) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert max(by_hand[3]) == RATE
    assert by_hand[3].index(RATE) == 5


@given(schedule=st.sampled_from(CONFIGS), done=st.integers(0, STEPS * EPOCHS - 1))
def test_resumed_scheduler_has_the_same_rates(schedule: ScheduleConfig, done: int) -> None:
    assert rates(schedule, done) == rates(schedule)[done:]


def test_one_cycle_does_not_change_momentum(tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = torch.optim.SGD.__init__
    monkeypatch.setattr(
        torch.optim.SGD, "__init__", lambda self, *a, **k: (made.append(self), original(self, *a, **k))[1]
    )
    sgd = OptimizerConfig(name="sgd", lr=0.02, momentum=0.3)
    run_job(toy_job(tmp_path / "a", optimizer=sgd, schedule=ScheduleConfig(name="one_cycle")), toys)
    assert [group["momentum"] for group in made[0].param_groups] == [0.3, 0.3]


def test_warm_up_shorter_than_a_step_is_refused_before_the_folder_is_claimed(tmp_path: Path, toys: DataSet) -> None:
    """A warm-up of one of nine steps, for which torch would divide by zero."""
    job = toy_job(tmp_path / "a", schedule=ScheduleConfig(name="one_cycle", warmup=1 / 9))
    with pytest.raises(ValueError, match="at most one of 9 steps; train longer or raise"):
        run_job(job, toys)
    assert not job.folder.exists()
