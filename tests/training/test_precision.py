"""Training in bfloat16, with a fallback to float32 at the first loss that is not finite."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Batch, Needs, Terms
from holdfast.data import DataSet
from holdfast.methods.plain import Plain
from holdfast.recipes import assemble
from holdfast.recipes.tables.train import OptimizerConfig
from holdfast.records import snapshot
from holdfast.rng import Rng
from holdfast.training.batches import Batches
from holdfast.training.job import Job
from tiny_study import at_method, bits, run_job, same, toy_job

EDGE = 3.4e38  # finite in float32; bfloat16 rounds it to infinity


class OnTheEdge(nn.Module):
    """An encoder with dropout whose sixth training pass overflows in bfloat16 but not in float32."""

    calls: Tensor

    def __init__(self, shape: tuple[int, ...], *, width: int = 4, channels: int = 1) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Dropout(0.5), nn.BatchNorm1d(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        features: Tensor = self.layers(x)
        if self.training and self.calls == 6:
            features = features + 0 * nn.functional.linear(torch.ones(1, 1), torch.full((1, 1), EDGE))
        return features


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the trial of bfloat16, which takes seconds."""
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 1.0)


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> None:
    known = assemble.kinds.member
    monkeypatch.setattr(
        assemble.kinds, "member", lambda kind, name: OnTheEdge if kind == "encoder" else known(kind, name)
    )


def mixed_job(folder: Path, **config: object) -> Job:
    return toy_job(folder, precision="bf16-mixed", **config)


def by_hand(job: Job, data: DataSet, lowered: range) -> Mapping[str, Tensor]:
    """A training loop in ten lines, with these steps under autocast."""
    net = assemble.build_model(job.model, data.shape, 3, 0)
    decayed = [p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.Adam([{"params": group} for group in decayed], lr=0.02, fused=True)
    batches = Batches(data.train, 8, Needs(), 0, torch.device("cpu"))
    torch.manual_seed(Rng(0).fork("torch").seed)
    for step, which in enumerate(which for epoch in range(3) for which in batches.order.epoch(epoch)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=step in lowered):
            logits = net(data.train.x[which])
        nn.functional.cross_entropy(logits.float(), data.train.y[which]).backward()
        optimizer.step()
    return net.state_dict()


def last_weights(job: Job) -> Mapping[str, Tensor]:
    return snapshot.read(job.folder / "last.safetensors")[0]


def test_passes_run_in_bfloat16_and_losses_in_float32(tmp_path: Path, toys: DataSet) -> None:
    job = run_job(mixed_job(tmp_path / "a"), toys)
    assert same(last_weights(job), by_hand(job, toys, range(9)))
    assert not same(last_weights(job), by_hand(job, toys, range(0)))
    assert bits(job.folder)["trained"]["float32_from"] is None


@pytest.mark.usefixtures("edge")
def test_nonfinite_step_is_repeated_in_float32_and_training_stays_there(tmp_path: Path, toys: DataSet) -> None:
    """Batch norm, the generator of dropout and the counter are reset before the step is repeated."""
    job = run_job(mixed_job(tmp_path / "a"), toys)
    trained = bits(job.folder)["trained"]
    assert trained["float32_from"] == 5
    assert same(last_weights(job), by_hand(job, toys, range(5)))
    assert last_weights(job)["encoder.calls"] == 9
    assert trained["forwards"] == (9 + 1) * 8  # the failed pass is counted


@pytest.mark.usefixtures("edge")
@pytest.mark.parametrize("stops", [(1,), (2, 5, 6, 7, 9)])
def test_resumed_run_stays_in_float32(tmp_path: Path, toys: DataSet, stops: tuple[int, ...]) -> None:
    whole = bits(run_job(mixed_job(tmp_path / "whole"), toys).folder)
    for stop in stops:
        torch.manual_seed(stop)
        with pytest.raises(KeyboardInterrupt):
            run_job(mixed_job(tmp_path / "parts"), toys, stop_at=stop)
    assert bits(run_job(mixed_job(tmp_path / "parts"), toys).folder) == whole


@dataclass(frozen=True)
class Broken:
    """A loss that is nan from step 4 on, in any precision."""

    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        terms = Plain()(model, batch, progress=progress, rng=rng)
        return terms if round(progress * 9) < 4 else replace(terms, total=terms.total * nan)


POINTS: list[Tensor] = []  # global, since the loop copies its method


@dataclass(frozen=True)
class Crafted:
    """Adversarial training that records its adversarial examples."""

    attack: Attack
    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        POINTS.append(self.attack(model, batch.x, batch.y, rng=rng))
        return Plain()(model, replace(batch, x=POINTS[-1]), progress=progress, rng=rng)


def test_nonfinite_loss_in_float32_stops_training(tmp_path: Path, toys: DataSet) -> None:
    with pytest.raises(FloatingPointError, match="the loss is nan at step 4"):
        run_job(mixed_job(tmp_path / "a", method=Broken()), toys)


def test_float32_is_the_default_and_is_not_recorded(tmp_path: Path, toys: DataSet) -> None:
    job = run_job(toy_job(tmp_path / "a"), toys)
    assert "float32_from" not in bits(job.folder)["trained"]
    with pytest.raises(ValueError, match="other settings"):
        run_job(mixed_job(tmp_path / "a"), toys)


def test_processor_without_bfloat16_is_refused_before_the_folder_is_claimed(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.crafting.arithmetic.advertises_bfloat16", lambda: True)
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 0.0)
    job = mixed_job(tmp_path / "a")
    with pytest.raises(ValueError, match="a trial of it died: this processor advertises instructions that it lacks"):
        run_job(job, toys)
    assert not job.folder.exists()
    run_job(toy_job(tmp_path / "b"), toys)


def test_mixed_precision_does_not_change_crafting(tmp_path: Path, toys: DataSet) -> None:
    """With a zero learning rate, the adversarial examples of the first batch equal those of float32 training."""
    POINTS.clear()
    still = OptimizerConfig(name="sgd", lr=0.0)
    for name in ("float32", "bf16-mixed"):
        run_job(toy_job(tmp_path / name, Crafted(**at_method()), precision=name, optimizer=still), toys)
    assert len(POINTS) == 18
    assert torch.equal(POINTS[0], POINTS[9])
