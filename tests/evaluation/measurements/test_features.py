"""Features as a measurement: equal to those of the network itself, in any shards, clean and along an attack."""

from dataclasses import replace
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.pgd import PGD
from holdfast.data import Split
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements import features as module
from holdfast.evaluation.measurements.attack import Clean
from holdfast.evaluation.measurements.features import Features, Path, features_name, label_name
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.subject import Subject, network
from holdfast.geometry import LInf, Threat
from holdfast.records.records import Records
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)
N = 30


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.first(x).relu()).relu())
        return out


def samples() -> Split:
    x = Rng(0).uniform(torch.empty(N, 6))
    return Split(x, torch.arange(N) % 3, torch.arange(N) + 100)


def pgd(steps: int, **settings: Any) -> PGD:
    return PGD(threat=THREAT, steps=steps, step=0.03, **{"keep": "last"} | settings)


def measured(folder: Folder, *measurements: Measurement, shard: int = 12, subject: Subject | None = None) -> Records:
    about: dict[str, Any] = {"name": "net", "seed": 0, "digest": "d", "folder": folder, "facts": {}}
    settings = Settings(seed=0, shard=shard, device=torch.device("cpu"), crafting="module")
    given = subject or network(Net(), **about)
    return evaluate(given, samples(), [Clean(), *measurements], settings, lambda *_: None)


def by_hand(x: Tensor) -> dict[str, Tensor]:
    net = Net()
    with torch.no_grad():
        first = net.first(x)
        second = net.second(first.relu())
        return {"first": first, "second": second, "features": second.relu(), "logits": net(x)}


def crafted(attack: PGD, fork: str) -> Tensor:
    split = samples()
    rng = Rng(0).fork("evaluate").fork(fork)
    return attack(Net(), split.x, split.batch(torch.arange(N)).rows(), rng=rng)


def test_layers_of_one_pass_are_those_of_the_network(tmp_path: Folder) -> None:
    layers = ("features", "first", "second", "logits")
    arrays = measured(tmp_path, Features(name="natural", layers=layers)).arrays
    for layer, expected in by_hand(samples().x).items():
        assert np.allclose(arrays[features_name("natural", layer)], expected.numpy(), atol=1e-6)
    assert np.array_equal(arrays[label_name("natural")], by_hand(samples().x)["logits"].argmax(1).numpy())


@pytest.mark.parametrize("shard", [7, 30])
def test_features_under_attack_do_not_depend_on_shards(tmp_path: Folder, shard: int) -> None:
    arrays = measured(tmp_path, Features(name="PGD", attack=pgd(5)), shard=shard).arrays
    expected = by_hand(crafted(pgd(5), "features"))
    assert np.allclose(arrays[features_name("PGD")], expected["features"].numpy(), atol=1e-5)
    assert not np.allclose(arrays[features_name("PGD")], by_hand(samples().x)["features"].numpy(), atol=1e-2)


def test_a_point_outside_the_threat_is_replaced_by_the_clean_sample(tmp_path: Folder) -> None:
    class Far(PGD):
        def __call__(self, model: nn.Module, x: Tensor, *given: Any, **named: Any) -> Tensor:
            return x + 0.5

    arrays = measured(tmp_path, Features(name="far", attack=Far(threat=THREAT))).arrays
    assert np.allclose(arrays[features_name("far")], by_hand(samples().x)["features"].numpy(), atol=1e-6)


def test_a_path_holds_the_clean_sample_and_the_point_after_each_step(tmp_path: Folder) -> None:
    found = measured(tmp_path, Path(attack=pgd(4), recipe={"steps": 4}, shard=11)).arrays["features:path"]
    assert found.shape == (N, 5, 4)
    assert np.allclose(found[:, 0], by_hand(samples().x)["features"].numpy(), atol=1e-6)
    for t in range(1, 5):  # PGD with t steps of the same length goes the same way
        assert np.allclose(found[:, t], by_hand(crafted(pgd(t), "path"))["features"].numpy(), atol=1e-5)


def test_stored_parts_are_not_measured_again(tmp_path: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = (Features(name="PGD", attack=pgd(3), recipe={"steps": 3}), Path(attack=pgd(3), recipe={"steps": 3}))
    before = measured(tmp_path, *plan).arrays
    calls: list[int] = []
    original = module.measured
    monkeypatch.setattr(module, "measured", lambda *given: calls.append(1) or original(*given))
    after = measured(tmp_path, *plan).arrays
    assert not calls
    assert all(np.array_equal(before[name], after[name]) for name in before)
    measured(tmp_path, replace(plan[0], recipe={"steps": 4}, attack=pgd(4)))
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Features(name="natural", layers=("third",)), "the model has no layer 'third'; it has first, second, head"),
        (Path(attack=pgd(4, keep="fooled"), recipe={}), "the attack made 1 to 4 steps but a path needs as many"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Folder, plan: Measurement, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measured(tmp_path, plan)


def test_features_that_take_too_much_memory_are_refused(tmp_path: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 100)
    with pytest.raises(ValueError, match=r"features of 12 points in the layers features take .* GiB; choose"):
        measured(tmp_path, Features(name="natural"))


def test_a_classifier_without_a_network_has_no_features(tmp_path: Folder) -> None:
    subject = Subject(name="knn", seed=0, digest="d", folder=tmp_path, facts={}, predict=lambda x, rng: x[:, 0].long())
    with pytest.raises(ValueError, match="knn has no network, so it has no features to analyze"):
        measured(tmp_path, Features(name="natural"), subject=subject)
