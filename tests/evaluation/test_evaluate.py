"""The evaluator: which samples are attacked, how results are counted, and when stored parts are reused."""

import errno
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.bim import BIM
from holdfast.attacks.hopskipjump import HopSkipJump
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.rays import RayS
from holdfast.certify.neighbors import Neighbors
from holdfast.contracts import Certificate, Cost, Rows, Watch
from holdfast.data import DataSet, Split
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements import features
from holdfast.evaluation.measurements.attack import Attacked, Clean
from holdfast.evaluation.measurements.certificate import Certified
from holdfast.evaluation.measurements.inside import Map
from holdfast.evaluation.subject import Subject, network
from holdfast.evaluation.suite import attack_measurements
from holdfast.geometry import LInf, Threat
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.certify import learners
from holdfast.recipes.tables.model import ModelConfig
from holdfast.records import parts as cache
from holdfast.records import provenance, snapshot
from holdfast.records.records import Records
from holdfast.rng import Rng

PGD_ON_NOISE = (PGD(threat=Threat(LInf(), 0.05), steps=5), {"name": "pgd"})
measured = partial(attack_measurements, classes=2)
CPU = torch.device("cpu")
GIVEN: list[tuple[float, list[int]]] = []  # eps and sample indices of every call of an attack


class Bright(nn.Module):
    """Class 1 where the mean of the pixels is above one half, else class 0."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


@dataclass(frozen=True)
class Push:
    """Moves every pixel up by eps, or by more than eps."""

    threat: Threat
    too_far: tuple[int, ...] = ()
    minimal = False

    def at(self, eps: float) -> "Push":
        return replace(self, threat=replace(self.threat, eps=eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        rows = Rows.of(y)
        GIVEN.append((self.threat.eps, rows.index.tolist()))
        if watch is not None:
            watch(rows, x, torch.zeros(len(x)), Cost(2 * len(x), len(x)))
        far = torch.tensor([int(i) in self.too_far for i in rows.index], dtype=torch.bool)
        return x + torch.where(far, 0.4, self.threat.eps)[:, None, None, None]


@pytest.fixture(autouse=True)
def clear_calls() -> None:
    GIVEN.clear()


def pushed(eps: float, **more: Any) -> tuple[Push, dict[str, Any]]:
    return Push(Threat(LInf(), eps), **more), {"name": "push", "eps": eps} | more


# means of the images and labels; the last two are misclassified without an attack
MEANS, LABELS = [0.48, 0.42, 0.35, 0.1, 0.9, 0.3], [0, 0, 0, 0, 0, 1]


def split() -> Split:
    x = torch.tensor(MEANS)[:, None, None, None].expand(-1, 1, 2, 2).clone()
    return Split(x, torch.tensor(LABELS), torch.arange(20, 26))


def subject(folder: Path, model: nn.Module | None = None, digest: str = "weights") -> Subject:
    facts = {"model": "bright", "seed": 0}
    return network(model or Bright(), name="bright", seed=0, digest=digest, folder=folder, facts=facts)


def run(folder: Path, todo: list[Attacked], **other: Any) -> Records:
    tested, tick = other.pop("subject", None) or subject(folder), other.pop("tick", lambda *_: None)
    samples = other.pop("split", None) or split()
    settings = Settings(**{"seed": 0, "shard": 4, "device": CPU} | other)
    return evaluate(tested, samples, [Clean(), *todo], settings, tick)


def column(records: Records, kind: str, attack: str) -> list[Any]:
    values: list[Any] = records.columns[f"{kind}:linf:{attack}"].tolist()
    return values


def test_columns_equal_a_computation_by_hand(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1), "far": pushed(0.1, too_far=(20, 23))})
    records = run(tmp_path, todo)
    assert records.columns["index"].tolist() == [20, 21, 22, 23, 24, 25]
    assert records.columns["label"].tolist() == [0, 0, 0, 0, 1, 0]
    # two cross the decision boundary, two do not, two are misclassified and count as fooled at distance 0
    assert column(records, "fooled", "push") == [True, True, False, False, True, True]
    assert column(records, "label", "push") == [1, 1, 0, 0, 1, 0]
    assert column(records, "distance", "push") == pytest.approx([0.1, 0.1, 0.1, 0.1, 0, 0], abs=1e-7)
    # the first left the threat: it does not count and has no distance
    assert column(records, "fooled", "far") == [False, True, False, False, True, True]
    assert column(records, "label", "far") == [0, 1, 0, 0, 1, 0]
    assert np.isnan(column(records, "distance", "far")).tolist() == [True, False, False, True, False, False]
    facts = records.facts["attacks"]
    assert (facts["push"]["outside"], facts["far"]["outside"]) == (0, 2)
    assert facts["push"]["settings"] == {"name": "push", "eps": 0.1}
    assert records.facts["model"] == "bright"


class Jitter(Bright):
    """Uniform noise of width 0.1 on the mean of the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.1 * (torch.rand(len(x)) - 0.5)
        return super().forward(x + noise[:, None, None, None])


@pytest.mark.parametrize("shard", [2, 6])
def test_a_randomized_model_is_judged_in_ten_draws(shard: int, tmp_path: Path) -> None:
    """The first sample is near the boundary, the second is moved near it, the third and fourth never come there."""
    todo = measured({"push": pushed(0.1)}, "push", (0.03, 0.1))
    records = run(tmp_path, todo, subject=subject(tmp_path, Jitter()), shard=shard)
    clean, moved = records.columns["accuracy"], records.columns["accuracy:linf:push"]
    assert all(0 <= share <= 1 and (10 * share) % 1 == pytest.approx(0, abs=1e-9) for share in [*clean, *moved])
    assert (clean[1:4] == 1).all()
    assert (clean[4:] == 0).all()
    assert (moved[2:4] == [1, 1]).all()
    assert (moved[4:] == 0).all()
    assert moved[1] < 1
    attacked = records.columns["label"] == records.columns["y"]
    fooled = np.array(column(records, "fooled", "push"))
    easier = np.array(column(records, "fooled", "push@0.03"))
    assert np.array_equal(fooled[attacked], (moved < 1)[attacked])
    assert (fooled | ~easier).all()
    same = attacked & easier  # carried over from the smaller eps, with its draws
    assert np.array_equal(moved[same], records.columns["accuracy:linf:push@0.03"][same])
    facts = records.attacks["push"].draws
    assert facts is not None
    assert (facts.number, facts.mean) == (10, pytest.approx(moved.mean()))
    assert facts.worst <= facts.mean
    assert records.facts["clean"]["draws"]["mean"] == pytest.approx(clean.mean())
    assert records.facts["clean"]["forwards"] == 6 * 11
    again = Records.load(tmp_path / "records")
    assert again.attacks["push"].draws == facts


def test_columns_of_a_randomized_model_do_not_depend_on_the_shard_size(tmp_path: Path) -> None:
    """Its noise follows the batch, so the evaluator divides the samples alike whatever the setting."""
    x = Rng(0).uniform(torch.empty(300, 1, 2, 2))
    split = Split(x, Bright()(x).argmax(1), torch.arange(300))
    records = []
    for size in (20, 90, 1000):
        own, todo = subject(tmp_path / str(size), Jitter()), [Clean(), *measured({"pgd": PGD_ON_NOISE})]
        settings = Settings(seed=0, shard=size, device=CPU, arithmetic="float32")
        records.append(evaluate(own, split, todo, settings, lambda *_: None))
    first = records[0].columns
    assert 0 < first["accuracy:linf:pgd"].mean() < first["accuracy"].mean() < 1
    for other in records[1:]:
        assert all(np.array_equal(first[name], other.columns[name], equal_nan=True) for name in first)


def test_a_model_without_randomness_has_no_draws(tmp_path: Path) -> None:
    records = run(tmp_path, measured({"push": pushed(0.1)}))
    assert not [name for name in records.columns if name.startswith("accuracy")]
    assert "draws" not in records.facts["clean"]
    assert "draws" not in records.facts["attacks"]["push"]
    assert records.facts["clean"]["forwards"] == 6


def test_misclassified_samples_are_not_attacked(tmp_path: Path) -> None:
    run(tmp_path, measured({"push": pushed(0.1)}))
    assert GIVEN == [(0.1, [20, 21, 22, 23]), (0.1, [])]


def test_worst_case_is_computed_per_sample(tmp_path: Path) -> None:
    records = run(tmp_path, measured({"a": pushed(0.1, too_far=(20,)), "b": pushed(0.1, too_far=(21,))}))
    assert records.held(0.1, "linf").tolist() == [False, False, True, True, False, False]
    assert records.held(0.0, "linf").tolist() == [True, True, True, True, False, False]


def test_curve_increases_eps_and_attacks_no_fooled_sample_again(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1)}, "push", (0.2, 0.03, 0.1))
    assert [(attack.name, attack.carry) for attack in todo] == [
        ("push", None),
        ("push@0.03", None),
        ("push@0.2", "push"),
    ]
    records = run(tmp_path, todo, shard=10)
    assert GIVEN == [(0.1, [20, 21, 22, 23]), (0.03, [20, 21, 22, 23]), (0.2, [22, 23])]
    assert column(records, "fooled", "push@0.03") == [True, False, False, False, True, True]
    assert column(records, "fooled", "push@0.2") == [True, True, True, False, True, True]
    # samples fooled at a smaller eps keep that distance
    assert column(records, "distance", "push@0.2") == pytest.approx([0.1, 0.1, 0.2, 0.2, 0, 0], abs=1e-7)
    assert column(records, "label", "push@0.2") == [1, 1, 1, 0, 1, 0]
    assert records.facts["attacks"]["push@0.2"]["settings"] == {"name": "push", "eps": 0.1, "at": 0.2}
    for eps, name in ((0.03, "push@0.03"), (0.1, "push"), (0.2, "push@0.2")):
        assert records.measured(eps, "linf")
        assert records.facts["attacks"][name]["eps"] == eps


def test_each_point_of_a_curve_starts_from_the_next_smaller_eps() -> None:
    todo = measured({"push": pushed(0.1)}, "push", (0.05, 0.2, 0.3))
    assert [(attack.name, attack.carry) for attack in todo[1:]] == [
        ("push@0.05", None),
        ("push@0.2", "push"),
        ("push@0.3", "push@0.2"),
    ]


def test_cost_is_counted(tmp_path: Path) -> None:
    records = run(tmp_path, measured({"push": pushed(0.1)}))
    reported = records.facts["attacks"]["push"]
    assert (reported["forwards"], reported["backwards"]) == (8, 4)
    clean = records.facts["clean"]
    assert (clean["forwards"], clean["backwards"]) == (6, 0)
    assert reported["seconds"] > 0
    assert clean["seconds"] > 0


def test_images_are_stored_for_the_shown_attack(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1), "other": pushed(0.05)}, strip="push")
    records = run(tmp_path, todo)
    assert set(records.arrays) == {"shown", "clean", "adversarial:linf:push"}
    assert records.arrays["shown"].tolist() == [20, 21, 22, 23]  # of the first shard
    clean, changed = records.arrays["clean"], records.arrays["adversarial:linf:push"]
    assert clean[:, 0, 0, 0].tolist() == pytest.approx(MEANS[:4])
    assert changed[:, 0, 0, 0].tolist() == pytest.approx([m + 0.1 for m in MEANS[:4]])
    whole = run(tmp_path / "whole", todo, shard=100)
    assert len(whole.arrays["shown"]) == 6
    assert whole.arrays["adversarial:linf:push"][4:, 0, 0, 0].tolist() == pytest.approx(MEANS[4:])  # not attacked


def test_records_open_with_pandas(tmp_path: Path) -> None:
    run(tmp_path, measured({'push, the "first"': pushed(0.1)}))
    table = pd.read_csv(tmp_path / "records" / "records.csv")
    assert list(table["index"]) == [20, 21, 22, 23, 24, 25]
    assert table['fooled:linf:push, the "first"'].tolist() == [True, True, False, False, True, True]
    facts = json.loads((tmp_path / "records" / "facts.json").read_text())
    assert facts["facts"]["model"] == "bright"


def test_second_evaluation_computes_nothing(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1), "soft": pushed(0.01)}, "push", (0.2,))
    first = run(tmp_path, todo)
    asked = len(GIVEN)
    assert asked == 3 * 2
    again = run(tmp_path, todo)
    assert len(GIVEN) == asked
    assert facts_and_columns(again) == facts_and_columns(first)


def facts_and_columns(records: Records) -> tuple[Any, Any]:
    return json.dumps(dict(records.facts)), {name: values.tolist() for name, values in records.columns.items()}


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob("*.npz"))


def test_missing_or_damaged_part_is_computed_again(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1)})
    first = run(tmp_path, todo)
    np.save(single := io.BytesIO(), np.arange(3))
    damages: list[Callable[[Path], object]] = [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04" + bytes(80)),
        lambda path: path.write_bytes(path.read_bytes().replace(b"fooled", b"Fooled")),
        lambda path: path.write_bytes(single.getvalue()),
    ]
    whole = {path: path.read_bytes() for path in parts(tmp_path)}
    assert len(whole) == 4
    for damage in damages:
        for path, content in whole.items():
            damage(path)
            GIVEN.clear()
            assert facts_and_columns(run(tmp_path, todo))[1] == facts_and_columns(first)[1]
            assert len(GIVEN) <= 1
            assert parts(tmp_path) == sorted(whole)
            path.write_bytes(content)


def test_every_flipped_bit_of_a_part_is_detected_or_harmless(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1)})
    first = facts_and_columns(run(tmp_path, todo))
    path = max(parts(tmp_path), key=lambda path: path.stat().st_size)
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        assert facts_and_columns(run(tmp_path, todo))[1] == first[1]


def test_interrupted_evaluation_resumes(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1), "soft": pushed(0.01)})

    def tick(done: int, total: int, name: str) -> None:
        assert total == 6
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, todo, tick=tick)
    assert len(GIVEN) == 2
    assert not (tmp_path / "records").exists()
    run(tmp_path, todo)
    assert len(GIVEN) == 4


def changed(todo: list[Attacked], **fields: Any) -> list[Attacked]:
    return [replace(todo[0], **fields)]


def test_parts_of_other_subjects_samples_or_settings_are_not_reused(tmp_path: Path) -> None:
    todo = measured({"push": pushed(0.1)})
    run(tmp_path, todo)
    brighter, relabeled = split(), split()
    brighter.x[0] += 0.01
    relabeled.y[0] = 1
    renamed = Split(split().x, split().y, split().index + 1)
    others: list[tuple[list[Attacked], dict[str, Any]]] = [
        (todo, {"subject": subject(tmp_path, digest="other weights")}),
        (todo, {"seed": 1}),
        (todo, {"split": brighter}),
        (todo, {"split": relabeled}),
        (todo, {"split": renamed}),
        (changed(todo, recipe={"name": "push", "eps": 0.1, "steps": 2}), {}),
        (measured({"push": pushed(0.2)}), {}),
        (changed(todo, name="renamed"), {}),
        (todo, {"shard": 3}),
    ]
    for trial, other in others:
        GIVEN.clear()
        run(tmp_path, trial, **other)
        assert GIVEN, other
    GIVEN.clear()
    run(tmp_path, todo)
    assert GIVEN == []  # and none of them has overwritten the first part


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    todo = measured({"push": pushed(0.1)})
    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path, todo)
    assert parts(tmp_path) == []
    assert run(tmp_path, todo).facts["attacks"]["push"]["outside"] == 0


@pytest.fixture(scope="module")
def trained(finished: Path, digits: DataSet) -> tuple[nn.Module, str]:
    tensors, _ = snapshot.read(finished / "out" / "TLA" / "seed-0" / "best.safetensors")
    model = build_model(ModelConfig(encoder="tiny", channels=1, width=8), digits.shape, 10, 0)
    snapshot.load_weights(model, tensors, finished)
    return model, snapshot.digest(tensors)


def test_results_do_not_depend_on_shard_size_and_order(
    tmp_path: Path, digits: DataSet, trained: tuple[nn.Module, str]
) -> None:
    threat = Threat(LInf(), 0.1)
    attacks = {
        "noise": Noise(threat=threat),
        "bim": BIM(threat=threat, steps=4),
        "pgd": PGD(threat=threat, steps=3, restarts=2),
    }
    todo = measured({name: (attack, {"name": name}) for name, attack in attacks.items()}, "pgd", (0.05, 0.2))
    some = digits.test.take(torch.arange(90))
    turned = digits.test.take(torch.arange(90).flip(0))
    tables = []
    for number, (shard, samples) in enumerate(((7, some), (1000, some), (40, turned))):
        tested = subject(tmp_path / f"{number}", *trained)
        records = run(tmp_path, todo, subject=tested, split=samples, shard=shard)
        table = pd.DataFrame({k: v for k, v in records.columns.items() if not k.startswith("distance")})
        tables.append(table.sort_values("index", ignore_index=True))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    shares = [tables[0][f"fooled:linf:{name}"].mean() for name in ("noise", "pgd@0.05", "pgd", "pgd@0.2")]
    assert shares[1] < shares[2] < shares[3]  # the comparison covers fooled and unfooled samples
    assert (tables[0]["label"] == tables[0]["y"]).mean() > 0.2


def test_micro_batch_size_is_measured_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([3, 5])
    monkeypatch.setattr("holdfast.evaluation.choose.measured", lambda model, x, y, total: next(given))
    todo = measured({"push": pushed(0.1)})
    assert run(tmp_path, todo).facts["micro"] == 3
    assert run(tmp_path, todo).facts["micro"] == 3
    (tmp_path / "choices.json").write_text("{")
    assert run(tmp_path, todo).facts["micro"] == 5


def test_parts_of_another_version_of_the_code_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = measured({"push": pushed(0.1)})
    first = run(tmp_path, todo)
    GIVEN.clear()
    monkeypatch.setattr("holdfast.evaluation.evaluate.code_version", lambda *parts: "another")
    again = run(tmp_path, todo)
    assert len(GIVEN) == 2
    assert facts_and_columns(again)[1] == facts_and_columns(first)[1]
    GIVEN.clear()
    run(tmp_path, todo)
    assert not GIVEN


def test_records_name_what_made_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, measured({"push": pushed(0.1)}))
    mine = json.loads(json.dumps(provenance.maker()))
    monkeypatch.setattr(cache, "maker", lambda: {"code": "later", "versions": {"torch": "9"}, "commit": None})
    records = run(tmp_path, measured({"push": pushed(0.1), "soft": pushed(0.01)}))
    assert records.facts["made"] == [mine, {"code": "later", "versions": {"torch": "9"}, "commit": None}]
    assert records.facts["versions"] == {"torch": "9"}


def test_code_version_changes_with_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*provenance._EVERYWHERE, "attacks/pgd.py", "certify/neighbors.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)
    version = provenance.code_version.__wrapped__
    before, other = version("attacks"), version("certify")
    assert before != other
    (tmp_path / "attacks" / "pgd.py").write_text("x = 2\n")
    assert version("attacks") != before
    assert version("certify") == other
    (tmp_path / "geometry.py").write_text("x = 2\n")
    assert version("certify") != other


def test_attacks_run_with_no_correctly_classified_sample(tmp_path: Path) -> None:
    wrong = Split(split().x, torch.tensor([1, 1, 1, 1, 0, 1]), split().index)
    threat = Threat(LInf(), 0.1)
    records = run(tmp_path, measured({"noise": (Noise(threat=threat), {}), "push": pushed(0.1)}), split=wrong)
    assert column(records, "fooled", "noise") == [True] * 6
    assert column(records, "distance", "push") == [0.0] * 6


def without_module(folder: Path) -> Subject:
    """Nearest neighbors of two points, black and white, in float64."""
    points = torch.stack([torch.zeros(4), torch.ones(4)]).double()
    neighbors = Neighbors(points=points, labels=torch.tensor([0, 1]), box=(0.0, 1.0))
    return Subject(
        name="neighbors",
        seed=0,
        digest="points",
        folder=folder,
        facts={"model": "neighbors", "seed": 0},
        predict=lambda x, rng: neighbors.predict(x.flatten(1)),
        dtype=torch.float64,
    )


@pytest.mark.parametrize("attack", [RayS, HopSkipJump])
def test_black_box_attacks_need_no_module(tmp_path: Path, attack: type[RayS]) -> None:
    hard = attack(threat=Threat(LInf(), inf), queries=300)
    todo = measured({"hard": (hard, {"queries": 300})})
    records = run(tmp_path, todo, subject=without_module(tmp_path))
    assert records.columns["label"].tolist() == [0, 0, 0, 0, 1, 0]
    assert column(records, "fooled", "hard") == [True] * 6
    distance = column(records, "distance", "hard")  # the boundary is where the mean is one half
    assert distance[:4] == pytest.approx([0.02, 0.08, 0.15, 0.4], rel=0.2, abs=1e-3)
    assert all(found >= mean for found, mean in zip(distance[:4], [0.02, 0.08, 0.15, 0.4], strict=True))
    facts = records.facts["attacks"]["hard"]
    assert facts["minimal"]
    assert facts["backwards"] == 0
    assert 4 * 200 < facts["forwards"] <= 4 * 300


def test_attacks_that_need_gradients_are_refused_without_a_module(tmp_path: Path) -> None:
    todo = measured({"pgd": (PGD(threat=Threat(LInf(), 0.1)), {})})
    with pytest.raises(ValueError, match="neighbors has no network, so pgd finds no gradients there; leave it out"):
        run(tmp_path, todo, subject=without_module(tmp_path))


def test_tick_counts_parts(tmp_path: Path) -> None:
    reported: list[tuple[int, int, str]] = []
    run(tmp_path, measured({"push": pushed(0.1)}), tick=lambda *counts: reported.append(counts))
    assert reported == [(0, 4, "clean"), (1, 4, "clean"), (2, 4, "clean"), (3, 4, "push"), (4, 4, "push")]


@dataclass(frozen=True)
class Proof:
    """Certifies the label 0 with a random radius, and abstains where the mean of the pixels is below 0.2."""

    norm = LInf()

    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate:
        abstains = x.flatten(1).mean(1) < 0.2
        return Certificate(-abstains.long(), rng.uniform(x[:, 0, 0, 0]), torch.full((len(x),), 2.0))


def test_certificates_count_for_the_prediction_and_do_not_depend_on_the_shard(tmp_path: Path) -> None:
    """The fourth sample abstains, and the fifth is predicted as class 1."""
    found = []
    for shard in (None, 1, 5):
        todo: Any = [Certified(name=n, certifier=Proof(), recipe={"n": n}, shard=shard) for n in ("a", "b")]
        found.append(run(tmp_path / str(shard), todo))
    radius, upper = (found[0].columns[f"{kind}:linf:a"] for kind in ("radius", "upper"))
    assert (radius > 0).tolist() == [True, True, True, False, False, True]
    assert upper.tolist() == [2.0, 2.0, 2.0, np.inf, np.inf, 2.0]
    assert len(set(radius.tolist())) == 5
    for other in found[1:]:
        assert other.columns["radius:linf:a"].tolist() == radius.tolist()
    assert {name: facts["settings"] for name, facts in found[0].certificates.items()} == {
        "a": {"n": "a"},
        "b": {"n": "b"},
    }


PATH = features.Path(attack=PGD(threat=Threat(LInf(), 0.1)), recipe={})


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        (["evaluation.measurements.attack", "models", "certify.neighbors"], Clean.code),
        (["evaluation.measurements.attack", "attacks", "models"], Attacked.code),
        (["evaluation.measurements.certificate", "certify"], Certified.code),
        (["evaluation.measurements.features", "evaluation.measurements.surroundings"], PATH.code),
        (["evaluation.measurements.inside"], Map(of=PATH, frames=(), seed=0).code),
        ([f"learners.{name}" for name in learners()], ("learners",)),
        (["training", "learners", "methods", "evaluation"], provenance._COMPUTING),
    ],
)
def test_versions_cover_all_modules_that_compute(modules: list[str], parts: tuple[str, ...]) -> None:
    graph = grimp.build_graph("holdfast")
    start = {module for name in modules for module in (f"holdfast.{name}", *graph.find_descendants(f"holdfast.{name}"))}
    used = start | {module for one in start for module in graph.find_upstream_modules(one)}
    covered = [f"holdfast.{part.removesuffix('.py')}" for part in (*provenance._EVERYWHERE, *parts)]
    without_numbers = tuple(
        f"holdfast.{name}" for name in ("members", "progress", "records", "recipes", "settings", "statistics")
    )
    known = (*covered, *without_numbers)
    missing = {one for one in used if one != "holdfast" and not any(f"{one}.".startswith(f"{k}.") for k in known)}
    assert not missing
