"""The rehearsal: a method whose first step fails is refused before any method is trained."""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Needs, Terms
from holdfast.data import DataSet
from holdfast.methods.tla import TLA
from holdfast.recipes import assemble
from holdfast.recipes.schema import load
from holdfast.records import snapshot
from holdfast.rng import Rng
from holdfast.run.session import Session
from holdfast.run.subjects.trained import Trained
from holdfast.training.loop import rehearse
from metric_learning_stub import install
from tiny_study import FABRIC, TINY, at_method, one_sentence, run_job, toy_job

Seen = list[tuple[Batch, Tensor, bool, float, int]]


class Watched:
    """A method that records its arguments and uses torch's global generator."""

    needs = Needs(positive=True, pool=5)

    def __init__(self, seen: Seen, value: float = 1.0) -> None:
        self.seen, self.value = seen, value

    def __deepcopy__(self, memo: object) -> "Watched":
        return self

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        logits = model(batch.x)
        self.seen.append(
            (batch, torch.cat([logits.detach().flatten(), torch.rand(3)]), model.training, progress, rng.seed)
        )
        total = self.value * logits.square().mean()
        return Terms(total, {"square": total})


def test_rehearsal_equals_step_0_of_training(toys: DataSet, tmp_path: Path) -> None:
    seen: Seen = []
    job = toy_job(tmp_path / "a", Watched(seen), batch=7)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    rehearse(job, toys, FABRIC)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []
    assert len(seen) == 1
    with pytest.raises(KeyboardInterrupt):
        run_job(job, toys, stop_at=1)
    (batch, drawn, *rest), (other, again, *same) = seen
    assert rest == same
    assert torch.equal(drawn, again)
    assert batch.positive is not None
    assert other.positive is not None
    assert batch.pool is not None
    assert other.pool is not None
    pairs = [(batch.x, other.x), (batch.y, other.y), (batch.positive, other.positive), (batch.pool.x, other.pool.x)]
    assert len(batch) == 7
    assert all(torch.equal(one, two) for one, two in pairs)


def test_pool_without_another_class_is_refused(toys: DataSet, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pool"):
        rehearse(toy_job(tmp_path, TLA(**at_method(pool=1))), toys, FABRIC)


def test_nonfinite_loss_is_refused(toys: DataSet, tmp_path: Path) -> None:
    message = r"^the loss is nan at step 0 \(term square\); change the settings of the method$"
    with pytest.raises(ValueError, match=message):
        rehearse(toy_job(tmp_path, Watched([], nan)), toys, FABRIC)


def test_unusable_bfloat16_is_refused(toys: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: object) -> None:
        raise ValueError("a trial of bfloat16 died")

    monkeypatch.setattr("holdfast.training.precision.chosen", died)
    rehearse(toy_job(tmp_path), toys, FABRIC)
    with pytest.raises(ValueError, match="a trial of bfloat16 died"):
        rehearse(toy_job(tmp_path, precision="bf16-mixed"), toys, FABRIC)


class Normed(nn.Module):
    """An encoder whose batch norm gets one value per sample and channel."""

    def __init__(self, shape: tuple[int, ...], *, width: int = 4, channels: int = 1) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.BatchNorm1d(width))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


def test_batch_norm_with_a_batch_of_one_is_refused(
    toys: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = assemble.kinds.member
    monkeypatch.setattr(assemble.kinds, "member", lambda kind, name: Normed if kind == "encoder" else known(kind, name))
    rehearse(toy_job(tmp_path, batch=2), toys, FABRIC)
    with pytest.raises(ValueError, match=r"^batch norm cannot train on a batch of 1; use a batch of at least 2$"):
        rehearse(toy_job(tmp_path, batch=1), toys, FABRIC)


def test_initial_weights_are_loaded(toys: DataSet, tmp_path: Path) -> None:
    seen: Seen = []
    job = toy_job(tmp_path / "a", Watched(seen))
    net = assemble.build_model(job.model, toys.shape, 3, 5)
    snapshot.write(tmp_path / "w.safetensors", net.state_dict(), {})
    for start in (None, tmp_path / "w.safetensors"):
        rehearse(replace(job, init_from=start), toys, FABRIC)
    fresh, given = (drawn[:-3] for _, drawn, *_ in seen)
    assert not torch.equal(fresh, given)
    assert torch.equal(net.train()(seen[1][0].x).flatten(), given)


def test_untrained_initial_model_needs_no_file(toys: DataSet, tmp_path: Path) -> None:
    job = replace(toy_job(tmp_path / "a"), init_from=tmp_path / "later.safetensors")
    rehearse(job, toys, FABRIC, job.model)
    with pytest.raises(ValueError, match=r"later\.safetensors does not fit this model"):
        rehearse(job, toys, FABRIC, replace(job.model, width=5))


PROXIES = (
    "methods.Last={name='metric', method='plain', loss='Proxies', settings={num_classes=10, embedding_size=8, power=2}}"
)
LAST = "methods.Last={name='plain'}"


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [PROXIES, "methods.Last.settings.embedding_size=99"],
            "Proxies has embedding_size = 99 but this model needs 8; change its settings",
        ),
        (
            [PROXIES, "methods.Last.settings.power=1000000"],
            "the loss is inf at step 0 (term metric); change the settings of the method",
        ),
        (
            [LAST, "methods.Last.train.init_from=no.safetensors"],
            "there are no weights at no.safetensors; train the model",
        ),
        ([LAST, "methods.Last.train.init_from=other.safetensors"], "other.safetensors does not fit this model ("),
        (
            [LAST, "methods.Last.train.init_from=plain", "methods.Last.model={width=9}"],
            "plain/seed-1/best.safetensors does not fit this model (size mismatch for",
        ),
        (
            [LAST, "methods.Last.train.schedule={name='one_cycle', warmup=0.01}"],
            "one_cycle rises over 0.01 of training, but that is at most one of 12 steps",
        ),
        (["methods.Last={name='tla', pool=1}"], "some anchors"),
        (
            ["methods.Last={name='adversarial', attack={loss='kl_divergence'}}"],
            "this loss needs 'logits' for every sample but the rows were given nothing",
        ),
    ],
)
def test_bad_last_method_is_refused_before_the_first_is_trained(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, changes: list[str], expected: str
) -> None:
    install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    snapshot.write(Path("other.safetensors"), {"weight": torch.zeros(1)}, {})
    options = [word for change in changes for word in ("--set", change)]
    message = one_sentence(call(command, "tiny.toml", "--out", "out", *options), 2)
    assert message.startswith("methods.Last: ")
    assert expected in message
    assert not Path("out").exists()


def test_initial_method_is_rehearsed_too(call: Any, tiny: Path, tmp_path: Path) -> None:
    changes = ["methods.First={name='tla', pool=1}", "methods.Middle={name='plain', train={init_from='First'}}"]
    changes += ["methods.Last={name='plain', train={init_from='Middle'}}"]
    options = [word for change in changes for word in ("--set", change)]
    message = one_sentence(call("train", tiny, "--method", "Last", "--out", tmp_path / "out", *options), 2)
    assert message.startswith("methods.First: ")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def models(tiny: Path, tmp_path: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("holdfast.run.session.load_for", lambda *_: digits)

    def opened(progress: Any, *changes: str) -> Trained:
        return Trained(Session.open(load(str(tiny), changes), tmp_path / "out", None, "cpu", progress))

    return opened


def test_rehearsal_reports_progress_and_skips_trained_models(models: Any) -> None:
    reported: list[tuple[Any, ...]] = []
    trained = models(lambda *progress: reported.append(progress), "train.epochs=1")
    trained.rehearse([("plain", 0), ("plain", 1), ("TLA", 0), ("TLA", 1)])
    assert reported == [("try each method", i, 2, name) for i, name in enumerate(("plain", "TLA", ""))]
    for seed in (0, 1):
        trained.prepare("plain", seed)
    reported.clear()
    trained.rehearse([("plain", 0), ("plain", 1)])
    assert reported == []
    trained.rehearse([("plain", 1), ("TLA", 1)])
    assert reported == [("try each method", 0, 1, "TLA"), ("try each method", 1, 1, "")]


def test_error_during_rehearsal_names_the_method(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of something")

    monkeypatch.setattr("holdfast.run.subjects.trained.rehearse", broken)
    trained = models(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"^methods\.plain: out of something$"):
        trained.rehearse([("plain", 0), ("plain", 1), ("TLA", 0), ("TLA", 1)])
