"""Weight averages, compared with a loop over the weights after every step."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.data import DataSet
from holdfast.data.augment import Augment, Flip
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.model import HeadConfig, ModelConfig
from holdfast.recipes.tables.train import EMAConfig, SWAConfig, TrainConfig
from holdfast.records import snapshot
from holdfast.training import checkpoint, loop
from holdfast.training.batches import Batches
from holdfast.training.job import Job
from holdfast.training.loop import train
from tiny_study import FABRIC, bits, run_job, same, toy_job

SWA = {"epochs": 4, "swa": SWAConfig(start=0.5), "augment": Augment(flip=Flip())}  # the mean of epochs 3 and 4


def weights(folder: Path, name: str) -> dict[str, Tensor]:
    return snapshot.read(folder / f"{name}.safetensors")[0]


def after_every_step(job: Job, data: DataSet) -> list[dict[str, Tensor]]:
    """The state of the network after each step."""
    stored: list[dict[str, Tensor]] = []

    def tick(*_: object) -> None:
        stored.append(checkpoint.under("model", weights(job.folder, "checkpoint")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SAVE_EVERY", 1)
        train(job, data, FABRIC, tick)
    return stored


def close(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6) for name in second)


def learned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name.endswith((".weight", ".bias"))}


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The states that were validated, each with a better accuracy than the one before."""
    seen: list[dict[str, Tensor]] = []

    def accuracy(model: nn.Module, *_: Any) -> tuple[float, float]:
        seen.append(deepcopy(dict(model.state_dict())))
        return 0.5, len(seen) / 100

    monkeypatch.setattr(loop, "accuracy", accuracy)
    return seen


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_ema_equals_a_loop_over_weights_and_statistics(
    tmp_path: Path, toys: DataSet, validated: list[dict[str, Tensor]], decay: float
) -> None:
    stored = after_every_step(toy_job(tmp_path / "plain"), toys)
    validated.clear()
    job = run_job(toy_job(tmp_path / "ema", ema=EMAConfig(decay=decay)), toys)
    floats = [name for name, value in stored[0].items() if value.is_floating_point()]
    assert any("running_var" in name for name in floats)
    mean = {name: stored[0][name].double() for name in floats}
    by_hand = [mean]
    for state in stored[1:]:
        mean = {name: decay * mean[name] + (1 - decay) * state[name].double() for name in floats}
        by_hand.append(mean)
    for epoch in (1, 2, 3):
        assert close({name: validated[epoch - 1][name].double() for name in floats}, by_hand[3 * epoch - 1])
    assert same(weights(job.folder, "last"), validated[2])
    assert same(weights(job.folder, "best"), validated[2])
    assert not close(stored[-1], {name: value.float() for name, value in mean.items()})


def test_swa_equals_the_mean_over_the_last_epochs(
    tmp_path: Path, toys: DataSet, validated: list[dict[str, Tensor]]
) -> None:
    plain = after_every_step(toy_job(tmp_path / "plain", **SWA | {"swa": None}), toys)
    validated.clear()
    job = run_job(toy_job(tmp_path / "swa", **SWA), toys)
    ends = [learned(state) for state in plain[2::3]]
    for epoch in (1, 2):  # before averaging starts, the weights themselves
        assert same(validated[epoch - 1], plain[3 * epoch - 1])
    for epoch, parts in ((3, ends[2:3]), (4, ends[2:4])):
        mean = {name: torch.stack([part[name].double() for part in parts]).mean(0).float() for name in parts[0]}
        assert close(validated[epoch - 1], mean)
    assert same(weights(job.folder, "last"), validated[3])
    assert same(weights(job.folder, "best"), validated[3])


def test_swa_recomputes_batch_norm_statistics(tmp_path: Path, toys: DataSet) -> None:
    """Mean and variance of the inputs of each batch norm, averaged over the batches of the last epoch."""
    job = run_job(toy_job(tmp_path / "swa", **SWA), toys)
    averaged = weights(job.folder, "last")
    net = build_model(job.model, toys.shape, 3, 0)
    net.load_state_dict(averaged)
    seen: dict[str, list[Tensor]] = {}
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _, given, __, name=name: seen.setdefault(name, []).append(given[0]))
    batches = Batches(toys.train, 8, job.entry.method.needs, 0, torch.device("cpu"), SWA["augment"])  # type: ignore[arg-type]
    for step, which in enumerate(batches.order.epoch(3), start=9):
        net.train()(batches.batch(step, which).x)
    assert len(seen) > 1
    for name, given in seen.items():
        mean = torch.stack([x.mean((0, 2, 3)) for x in given]).mean(0)
        variance = torch.stack([x.var((0, 2, 3)) for x in given]).mean(0)
        assert torch.allclose(averaged[f"{name}.running_mean"], mean, atol=1e-6)
        assert torch.allclose(averaged[f"{name}.running_var"], variance, atol=1e-6)


def test_passes_for_batch_norm_statistics_are_counted(tmp_path: Path, toys: DataSet) -> None:
    plain = bits(run_job(toy_job(tmp_path / "plain", **SWA | {"swa": None}), toys).folder)["trained"]
    swa = bits(run_job(toy_job(tmp_path / "swa", **SWA), toys).folder)["trained"]
    assert swa["forwards"] == plain["forwards"] + 2 * 24
    assert swa["backwards"] == plain["backwards"]


def test_recomputing_statistics_does_not_change_the_mean(tmp_path: Path, toys: DataSet) -> None:
    """A head that projects its weights in every training pass must not change the mean."""
    head = HeadConfig(name="hypersphere", weight_norm="projected")
    model = ModelConfig(encoder="tiny", channels=1, width=4, head=head)
    stored = after_every_step(replace(toy_job(tmp_path / "plain", **SWA | {"swa": None}), model=model), toys)
    job = run_job(replace(toy_job(tmp_path / "swa", **SWA), model=model), toys)
    mean = (stored[8]["head.weight"] + stored[11]["head.weight"]) / 2
    assert torch.allclose(weights(job.folder, "last")["head.weight"], mean, atol=1e-7)
    assert not torch.allclose(mean, mean / mean.norm(dim=1, keepdim=True), atol=1e-6)


def test_epoch_before_the_mean_is_not_selected(tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([0.9, 0.8, 0.3, 0.2])
    monkeypatch.setattr(loop, "accuracy", lambda *_: (0.9, next(accuracies)))
    trained = bits(run_job(toy_job(tmp_path / "swa", **SWA), toys).folder)["trained"]
    assert (trained["best_epoch"], trained["best"]) == (3, 0.3)


@pytest.mark.parametrize(
    ("start", "epochs", "before"), [(0.75, 10, 7), (0.75, 1, 0), (0, 5, 0), (0.29, 100, 29), (0.99, 3, 2)]
)
def test_at_least_one_epoch_can_be_selected(start: float, epochs: int, before: int) -> None:
    assert TrainConfig(epochs=epochs, swa=SWAConfig(start=start)).skipped_epochs == before < epochs
