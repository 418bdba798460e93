"""Cascades: which samples a stage is run on, what is stored, and that the division into shards changes nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks._cascade import CascadeAttack, select
from holdfast.attacks.autoattack import AutoAttack
from holdfast.attacks.pgd import PGD
from holdfast.attacks.triage import Triage
from holdfast.contracts import Cascade, Rows, Stage
from holdfast.data import Split
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements.attack import Clean
from holdfast.evaluation.measurements.cascade import measurements_of, outputs_of
from holdfast.evaluation.subject import Subject, network
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import logit_difference
from holdfast.records.records import Records
from holdfast.rng import Rng

CPU, N = torch.device("cpu"), 60
STANDING = torch.tensor([True, True, False, True, True, True])
MARGIN = torch.tensor([-3.0, -1.0, 2.0, -2.0, -1.0, -5.0])


def stage(**settings: Any) -> Stage:
    return Stage(name="a", attack=PGD(threat=Threat(LInf(), 0.1), steps=1), **settings)


@pytest.mark.parametrize(
    ("settings", "fooled", "chosen"),
    [
        ({}, 0, [0, 1, 3, 4, 5]),
        ({"share": 0.4}, 0, [1, 4]),
        ({"share": 0.2}, 0, [1]),  # of equal margins the first
        ({"share": 0.41}, 0, [1, 3, 4]),  # rounded up
        ({"if_fooled": 0.0}, 0, []),
        ({"if_fooled": 0.0}, 0.01, [0, 1, 3, 4, 5]),
        ({"if_fooled": 0.1}, 0.1, []),
        ({"if_fooled": 0.1, "share": 0.2}, 0.11, [1]),
    ],
)
def test_a_stage_selects_the_samples_nearest_to_the_boundary(
    settings: dict[str, Any], fooled: float, chosen: list[int]
) -> None:
    assert select(stage(**settings), STANDING, MARGIN, fooled).nonzero().flatten().tolist() == chosen


def test_no_sample_is_selected_when_all_are_fooled() -> None:
    assert not select(stage(), torch.zeros(4, dtype=torch.bool), torch.ones(4), 1).any()


@dataclass(frozen=True, kw_only=True)
class Three(CascadeAttack):
    """One step on all samples, ten steps on half of the others, forty on the nearest tenth if that fooled any."""

    threat: Threat

    def stages(self, classes: int) -> Sequence[Stage]:
        def pgd(steps: int) -> PGD:
            return PGD(threat=self.threat, steps=steps, loss=logit_difference)

        return [
            Stage(name="one", attack=pgd(1)),
            Stage(name="ten", attack=pgd(10), share=0.5),
            Stage(name="forty", attack=pgd(40), share=0.1, if_fooled=0.0),
        ]


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)).eval()
    with torch.no_grad():  # steep and centered, so that the samples lie in several classes and near their boundaries
        net[1].weight *= 6
        net[1].bias -= net[1].weight.sum(1) / 2
    return net


@pytest.fixture
def samples(model: nn.Module) -> Split:
    x = Rng(0).uniform(torch.empty(N, 1, 4, 4))
    return Split(x, model(x).argmax(1), torch.arange(100, 100 + N))


ATTACK = Three(threat=Threat(LInf(), 0.05))


def evaluated(folder: Path, model: nn.Module, samples: Split, shard: int = N) -> Records:
    subject: Subject = network(model, name="net", seed=0, digest="weights", folder=folder, facts={"seed": 0})
    todo = measurements_of("three", ATTACK, {"name": "three"}, outputs_of(model, samples.x[:1]))
    settings = Settings(seed=0, shard=shard, device=CPU, arithmetic="float32")
    return evaluate(subject, samples, [Clean(), *todo], settings, lambda *_: None)


def same(a: Records, b: Records) -> bool:
    return all(np.array_equal(a.columns[name], b.columns[name], equal_nan=True) for name in a.columns)


def test_a_cascade_fulfils_the_contract() -> None:
    assert isinstance(ATTACK, Cascade)
    assert not isinstance(PGD(threat=ATTACK.threat), Cascade)
    assert ATTACK.at(0.2).threat.eps == 0.2


def test_records_say_which_stage_fooled_a_sample(tmp_path: Path, model: nn.Module, samples: Split) -> None:
    records = evaluated(tmp_path, model, samples)
    stages, facts = records.columns["stage:linf:three"], records.facts["attacks"]["three"]
    fooled = records.columns["fooled:linf:three"]
    assert ((stages >= 0) == fooled).all()
    assert [one["name"] for one in facts["stages"]] == ["one", "ten", "forty"]
    assert [one["fooled"] for one in facts["stages"]] == [int((stages == number).sum()) for number in range(3)]
    standing = N - facts["stages"][0]["fooled"]
    assert [one["attacked"] for one in facts["stages"][:2]] == [N, -(-standing // 2)]
    assert facts["backwards"] == sum(one["backwards"] for one in facts["stages"]) > 0
    assert 0 < fooled.sum() < N
    assert facts["stages"][1]["fooled"] > 0
    assert list(records.attacks["three"].stages) == facts["stages"]


@pytest.mark.parametrize("shard", [1, 7, 13])
def test_the_division_into_shards_changes_nothing(tmp_path: Path, model: nn.Module, samples: Split, shard: int) -> None:
    assert same(evaluated(tmp_path / "whole", model, samples), evaluated(tmp_path / "shards", model, samples, shard))


def test_the_order_of_samples_changes_nothing(tmp_path: Path, model: nn.Module, samples: Split) -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    whole = evaluated(tmp_path / "whole", model, samples)
    other = evaluated(tmp_path / "other", model, samples.take(order), 9)
    for name, column in whole.columns.items():
        assert np.array_equal(column[order.numpy()], other.columns[name], equal_nan=True), name


def test_a_killed_cascade_resumes_with_the_same_columns(
    tmp_path: Path, model: nn.Module, samples: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = evaluated(tmp_path / "whole", model, samples, 9), 0
    original = PGD.__call__

    def counted(self: PGD, *args: Any, **more: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise KeyboardInterrupt
        return original(self, *args, **more)

    monkeypatch.setattr(PGD, "__call__", counted)
    for _ in range(40):
        try:
            assert same(whole, evaluated(tmp_path / "killed", model, samples, 9))
            break
        except KeyboardInterrupt:
            pass
    else:
        raise AssertionError("it never finished")
    assert calls > 15


@pytest.mark.parametrize("suite", [AutoAttack, Triage], ids=lambda suite: suite.__name__)
def test_the_suites_resume_with_the_same_columns(
    suite: type[AutoAttack], tmp_path: Path, model: nn.Module, samples: Split
) -> None:
    few, attack = samples.take(torch.arange(10)), suite(threat=Threat(LInf(), 0.03))

    def run(folder: str, last: int | None = None) -> tuple[Records, int]:
        ticks = 0

        def tick(done: int, total: int, said: str) -> None:
            nonlocal ticks
            ticks += 1
            if done == last:
                raise KeyboardInterrupt

        subject = network(model, name="net", seed=0, digest="weights", folder=tmp_path / folder, facts={"seed": 0})
        todo = measurements_of("suite", attack, {"name": "suite"}, 4)
        settings = Settings(seed=0, shard=5, device=CPU, arithmetic="float32")
        return evaluate(subject, few, [Clean(), *todo], settings, tick), ticks

    whole, ticks = run("whole")
    for last in sorted(random.Random(0).sample(range(4, ticks - 1), 3)):
        with pytest.raises(KeyboardInterrupt):
            run("killed", last)
    assert same(whole, run("killed")[0])


def test_parts_are_not_reused_where_other_samples_change_the_ranking(
    tmp_path: Path, model: nn.Module, samples: Split
) -> None:
    first, rest = torch.arange(9), torch.arange(N)
    few = evaluated(tmp_path / "a", model, samples.take(first), 9)
    grown = evaluated(tmp_path / "a", model, samples.take(rest), 9)  # the first shard is the same
    assert same(grown, evaluated(tmp_path / "b", model, samples, 9))
    assert len(few) == 9


@dataclass(frozen=True, kw_only=True)
class Nearest(CascadeAttack):
    """No step on all samples, twenty steps on the nearest tenth, then one on all if that found anything, then none."""

    threat: Threat

    def stages(self, classes: int) -> Sequence[Stage]:
        still = PGD(threat=self.threat, steps=1, step=1e-6, start="clean")
        twenty = PGD(threat=self.threat, steps=20, loss=logit_difference)
        return [
            Stage(name="still", attack=still),
            Stage(name="twenty", attack=twenty, share=0.1),
            Stage(name="none", attack=still, share=0.0),
            Stage(name="all", attack=twenty, if_fooled=0.0),
        ]


@pytest.mark.parametrize("stages", [3, 4])
def test_parts_are_not_reused_where_other_samples_change_an_earlier_stage(
    tmp_path: Path, model: nn.Module, samples: Split, stages: int
) -> None:
    cascade = Nearest(threat=Threat(LInf(), 0.3))

    def run(folder: str, count: int) -> Records:
        subject = network(model, name="net", seed=0, digest="weights", folder=tmp_path / folder, facts={"seed": 0})
        todo = measurements_of("nearest", cascade, {"name": "nearest"}, 4)[:stages]
        settings = Settings(seed=0, shard=5, device=CPU, arithmetic="float32")
        return evaluate(subject, samples.take(torch.arange(count)), [Clean(), *todo], settings, lambda *_: None)

    run("a", 10)
    assert same(run("a", N), run("b", N))  # the first two shards are the same, but not what is nearest


class Rounded(nn.Module):
    """Rounds its inputs, so that there are no gradients: only the stages of Square find anything."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * 8).round() / 8)
        return logits


def triaged(folder: Path, model: nn.Module, samples: Split, shard: int) -> Records:
    subject: Subject = network(model, name="net", seed=0, digest="weights", folder=folder, facts={"seed": 0})
    todo = measurements_of("triage", Triage(threat=Threat(LInf(), 0.06)), {"name": "triage"}, 4)
    settings = Settings(seed=0, shard=shard, device=CPU, arithmetic="float32")
    return evaluate(subject, samples, [Clean(), *todo], settings, lambda *_: None)


def test_how_far_square_goes_in_triage_does_not_depend_on_shards(
    tmp_path: Path, model: nn.Module, samples: Split
) -> None:
    rounded = Rounded(model).eval()
    few = Split(samples.x, rounded(samples.x).argmax(1), samples.index)
    whole = triaged(tmp_path / "whole", rounded, few, N)
    found = {stage["name"]: stage["fooled"] for stage in whole.attacks["triage"].stages}
    assert found["square 1000"]
    assert found["square 2500"]
    for shard in (7, 25):
        assert same(whole, triaged(tmp_path / str(shard), rounded, few, shard))


def test_called_from_python_it_gives_what_the_evaluator_gives(tmp_path: Path, model: nn.Module, samples: Split) -> None:
    records = evaluated(tmp_path, model, samples)
    x, y = samples.x, samples.y
    x_adv = ATTACK(model, x, Rows(y, samples.index), rng=Rng(0).fork("evaluate"))
    assert ATTACK.threat.contains(x_adv, x).all()
    assert (model(x_adv).argmax(1) != y).tolist() == records.columns["fooled:linf:three"].tolist()
    assert len(ATTACK(model, x[:0], y[:0], rng=Rng(0))) == 0


def confirmed(folder: Path, model: nn.Module, samples: Split, draw: int, shard: int = N) -> Records:
    subject: Subject = network(model, name="net", seed=0, digest="weights", folder=folder, facts={"seed": 0})
    weak = replace(ATTACK, threat=Threat(LInf(), 0.02))
    first = measurements_of("weak", weak, {"name": "three"}, 4)
    second = measurements_of("sure", ATTACK, {"name": "three"}, 4, carry="weak", draw=draw)
    settings = Settings(seed=0, shard=shard, device=CPU, arithmetic="float32")
    return evaluate(subject, samples, [Clean(), *first, *second], settings, lambda *_: None)


@pytest.mark.parametrize("shard", [N, 7])
def test_a_cascade_on_samples_drawn_at_random(tmp_path: Path, model: nn.Module, samples: Split, shard: int) -> None:
    records = confirmed(tmp_path, model, samples, 15, shard)
    weak, sure = (records.columns[f"fooled:linf:{name}"] for name in ("weak", "sure"))
    facts = records.attacks["sure"]
    assert facts.drawn_from == "weak"
    assert facts.stages[0]["attacked"] == 15 < (~weak).sum()
    assert (sure | ~weak).all()  # what the first found counts for the second
    assert 0 < (sure & ~weak).sum() == sum(stage["fooled"] for stage in facts.stages) <= 15
    assert same(records, confirmed(tmp_path / "other", model, samples, 15, 13))


def test_drawing_more_samples_than_stand_draws_all(tmp_path: Path, model: nn.Module, samples: Split) -> None:
    records = confirmed(tmp_path, model, samples, 10 * N)
    assert records.attacks["sure"].stages[0]["attacked"] == (~records.columns["fooled:linf:weak"]).sum()
