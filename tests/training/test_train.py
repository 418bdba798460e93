"""The training loop: what it minimizes, saves and refuses."""

import json
from dataclasses import dataclass, replace
from math import cos, nan, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.noise import Noise
from holdfast.contracts import Batch, Needs, Outputs, Rows, Terms, Watch
from holdfast.data import DataSet, Split
from holdfast.data.augment import Augment, Flip, Saturation
from holdfast.evaluation import choose
from holdfast.geometry import Threat
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.plain import Plain
from holdfast.recipes.tables.model import ModelConfig
from holdfast.recipes.tables.train import EMAConfig, OptimizerConfig, ScheduleConfig, SWAConfig
from holdfast.records import snapshot
from holdfast.rng import Rng
from holdfast.training import loop
from tiny_study import THREAT, at_method, bits, other, run_job, same, toy, toy_job

SEEN: list[float] = []  # global, since the loop copies its method
SEEDS: list[int] = []


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return snapshot.read(folder / f"{name}.safetensors")[0]


@dataclass(frozen=True)
class Spy:
    """An attack that records its eps."""

    threat: Threat
    keep = "last"

    def at(self, eps: float) -> "Spy":
        return Spy(replace(self.threat, eps=eps))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        SEEN.append(self.threat.eps)
        SEEDS.append(rng.seed)
        return x


@dataclass(frozen=True)
class Pull:
    """Minimizes the sum of all parameters: the gradient is one everywhere."""

    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        total = torch.stack([p.sum() for p in model.parameters()]).sum()
        return Terms(total, {"sum": total})


@dataclass(frozen=True)
class Broken:
    """Plain training with a nan loss from a step on."""

    at: int
    value: float = nan
    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        terms = Plain()(model, batch, progress=progress, rng=rng)
        if round(progress * 9) < self.at:
            return terms
        broken = terms.total * self.value
        return Terms(terms.total + broken, {"fine": terms.total, "broken": broken})


def test_eps_warm_up_reaches_the_attack(tmp_path: Path, toys: DataSet) -> None:
    SEEN.clear()
    run_job(toy_job(tmp_path / "a", Adversarial(attack=Spy(THREAT), warmup=0.5)), toys)
    by_hand = [0.1 * min(1.0, (step / 9) / 0.5) for step in range(9)]
    assert pytest.approx(by_hand) == SEEN


def test_random_numbers_differ_between_steps_and_seeds(tmp_path: Path, toys: DataSet) -> None:
    SEEDS.clear()
    for seed in (0, 1):
        run_job(toy_job(tmp_path / f"{seed}", Adversarial(attack=Spy(THREAT)), seed=seed), toys)
    assert len(SEEDS) == len(set(SEEDS)) == 18


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (ScheduleConfig(), [1] * 9),
        (ScheduleConfig(name="step", at=(1, 2), gamma=0.5), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        (ScheduleConfig(name="cosine"), [(1 + cos(pi * step / 9)) / 2 for step in range(9)]),
    ],
)
def test_each_step_uses_the_learning_rate_of_the_schedule(
    tmp_path: Path, toys: DataSet, schedule: ScheduleConfig, factors: list[float]
) -> None:
    sgd = OptimizerConfig(name="sgd", lr=0.25, momentum=0.0)
    job = run_job(toy_job(tmp_path / "a", Pull(), optimizer=sgd, schedule=schedule), toys)
    start = run_job(toy_job(tmp_path / "b", Pull(), optimizer=replace(sgd, lr=0.0)), toys)
    before, after = weights(start.folder), weights(job.folder)
    trained = [name for name in after if name.endswith((".weight", ".bias"))]
    assert len(trained) == 14
    for name in trained:
        assert torch.allclose(before[name] - after[name], torch.tensor(0.25 * sum(factors)), atol=1e-5)


@dataclass(eq=False)
class Lopsided(nn.Module):
    """A loss whose gradient is three times as large for the proxies of the method as for the model."""

    needs = Needs()

    def __post_init__(self) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.zeros(5))

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        total = Pull()(model, batch, progress=progress, rng=rng).total + 3 * self.proxies.sum()
        return Terms(total, {"sum": total})


@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
def test_gradients_of_model_and_method_are_clipped_together(tmp_path: Path, toys: DataSet, max_norm: float) -> None:
    sgd = OptimizerConfig(name="sgd", lr=0.25, momentum=0.0)
    still = run_job(toy_job(tmp_path / "b", Lopsided(), optimizer=replace(sgd, lr=0.0)), toys)  # type: ignore[arg-type]
    job = run_job(toy_job(tmp_path / "a", Lopsided(), optimizer=sgd, clip_norm=max_norm), toys)  # type: ignore[arg-type]
    before, after = weights(still.folder), weights(job.folder)
    trained = [name for name in after if name.endswith((".weight", ".bias"))]
    length = (sum(after[name].numel() for name in trained) + 5 * 3**2) ** 0.5
    share = min(1.0, max_norm / length)
    assert (share < 1) == (max_norm == 0.5)
    for name in trained:
        assert torch.allclose(before[name] - after[name], torch.tensor(9 * 0.25 * share), atol=1e-5)
    assert torch.allclose(weights(job.folder, "method")["proxies"], torch.tensor(-9 * 0.25 * 3 * share), atol=1e-5)


@dataclass(frozen=True)
class Steep:
    """A finite loss with an infinite gradient from a step on."""

    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        total = torch.stack([(p - p.detach()).sum() for p in model.parameters()]).sum()
        return Terms(total if round(progress * 9) < 5 else total.abs().sqrt(), {})


def test_nonfinite_gradient_stops_training_before_the_step(tmp_path: Path, toys: DataSet) -> None:
    job = toy_job(tmp_path / "a", Steep(), clip_norm=1.0)
    with pytest.raises(FloatingPointError, match=r"the gradient has length (nan|inf) at step 5; try a smaller"):
        run_job(job, toys)
    tensors, facts = snapshot.read(job.folder / "checkpoint.safetensors")
    assert facts["step"] == 4
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())


def test_job_of_an_earlier_version_resumes(tmp_path: Path, toys: DataSet) -> None:
    """Its job.json lacks newer options and has a removed one, with values equal to the current defaults."""
    job = run_job(toy_job(tmp_path / "a"), toys)
    path = job.folder / "job.json"
    stored = json.loads(path.read_text())
    for later in ("clip_norm", "ema", "swa", "patience", "precision"):
        del stored["train"][later]
    del stored["train"]["schedule"]["warmup"]
    path.write_text(json.dumps(stored | {"train": stored["train"] | {"save_every": 500}}))
    run_job(job, toys)
    changes = {
        "clip_norm": 2.0,
        "schedule": ScheduleConfig(warmup=0.4),
        "ema": EMAConfig(),
        "swa": SWAConfig(),
        "patience": 2,
    }
    changes |= {"precision": "bf16-mixed"}
    for change in ({name: value} for name, value in changes.items()):
        with pytest.raises(ValueError, match="other settings"):
            run_job(other(job, **change), toys)
    path.write_text(json.dumps(stored | {"method": {"name": "gone"}}))
    with pytest.raises(ValueError, match="other settings"):
        run_job(job, toys)


def test_trained_model_lists_all_code_versions_that_trained_it(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = toy_job(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        run_job(job, toys, stop_at=5)
    later = {"code": "later", "versions": {}, "commit": None}
    monkeypatch.setattr(loop, "maker", lambda: later)
    run_job(job, toys)
    first, second = json.loads((job.folder / "trained.json").read_text())["made"]
    assert first["versions"]["torch"] == torch.__version__
    assert second == later


def test_chosen_arithmetic_is_used_for_the_whole_run(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, seen, real = toy_job(tmp_path / "a"), [], choose.arithmetic
    monkeypatch.setattr(choose, "chosen", lambda device: torch.bfloat16)

    def noted(name: Any) -> Any:
        seen.extend([name] if name != "auto" else [])
        return real("float32")

    monkeypatch.setattr(choose, "arithmetic", noted)
    with pytest.raises(KeyboardInterrupt):
        run_job(job, toys, stop_at=5)
    monkeypatch.setattr(choose, "chosen", lambda device: torch.float32)
    run_job(job, toys)
    assert seen == ["bfloat16", "bfloat16"]
    run_job(toy_job(tmp_path / "b"), toys)
    assert seen[2:] == ["float32"]


def test_one_step_equals_a_step_in_plain_torch(tmp_path: Path, toys: DataSet) -> None:
    """The loop against model, sample order, loss and Adam in ten lines."""
    job = run_job(toy_job(tmp_path / "a", epochs=1, batch=10), toys)
    net = loop.build_model(job.model, toys.shape, 3, 0)
    decayed = [p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.Adam([{"params": group} for group in decayed], lr=0.02, fused=True)
    for which in loop.Batches(toys.train, 10, Needs(), 0, torch.device("cpu")).order.epoch(0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(toys.train.x[which]), toys.train.y[which]).backward()
        optimizer.step()
    assert same(net.state_dict(), weights(job.folder))


def test_images_are_augmented_in_training_and_not_in_validation(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(loop, "accuracy", lambda model, some, *rest: (seen.append(some.x), (0.5, 0.5))[1])
    always = Augment(flip=Flip(share=1))
    mirrored = replace(toys, train=Split(toys.train.x.flip(-1), toys.train.y, toys.train.index))
    flipped = run_job(toy_job(tmp_path / "a", augment=always), toys)
    by_hand = run_job(toy_job(tmp_path / "b"), mirrored)
    assert same(weights(flipped.folder), weights(by_hand.folder))
    assert not same(weights(flipped.folder), weights(run_job(toy_job(tmp_path / "c"), toys).folder))
    assert seen
    assert all(torch.equal(x, toys.valid.x) for x in seen)


def test_log_holds_every_term_and_validation(tmp_path: Path, toys: DataSet) -> None:
    job = run_job(toy_job(tmp_path / "a"), toys)
    lines = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert [line["step"] for line in train] == list(range(1, 10))
    assert all(line["loss"] == line["cross_entropy"] > 0 for line in train)
    valid = [line for line in lines if line["split"] == "valid"]
    assert [(line["step"], line["epoch"]) for line in valid] == [(3, 1), (6, 2), (9, 3)]
    assert all(0 <= line["robust"] <= line["clean"] <= 1 for line in valid)
    assert all(round(line["clean"] * 9) == line["clean"] * 9 for line in valid)  # nine samples, no rounding
    trained = json.loads((job.folder / "trained.json").read_text())
    assert trained.pop("seconds") > 0
    best = max(line["robust"] for line in valid)
    first = next(line["epoch"] for line in valid if line["robust"] == best)
    passes = {"forwards": 9 * 8, "backwards": 9 * 8}
    digests = {name: snapshot.digest(weights(job.folder, name)) for name in ("best", "last")}
    assert trained.pop("weights") == digests
    assert trained.pop("crafted") == {"arithmetic": "float32", "crafting": "auto"}
    assert [maker["versions"]["torch"] for maker in trained.pop("made")] == [torch.__version__]
    assert trained == {"steps": 9, "epochs": 3, "ended": "epochs", "best": best, "best_epoch": first, **passes}


@pytest.mark.parametrize(("select", "best"), [("robust", 2), ("clean", 3)])
def test_best_epoch_is_selected_on_validation_and_last_is_saved_too(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch, select: str, best: int
) -> None:
    accuracies = {1: (0.7, 0.1), 2: (0.8, 0.3), 3: (0.9, 0.3), 4: (0.6, 0.2)}
    epoch = iter(accuracies.values())
    monkeypatch.setattr(loop, "accuracy", lambda *_: next(epoch))
    job = run_job(toy_job(tmp_path / "a", epochs=4, select=select), toys)
    assert json.loads((job.folder / "trained.json").read_text())["best_epoch"] == best  # the first of two equal epochs
    monkeypatch.setattr(loop, "accuracy", lambda *_: (0.5, 0.5))
    for epochs, name in ((best, "best"), (4, "last")):
        alone = run_job(toy_job(tmp_path / f"only {epochs}", epochs=epochs), toys)
        assert same(weights(job.folder, name), weights(alone.folder))
    facts = snapshot.read(job.folder / "best.safetensors")[1]
    assert facts == {"epoch": best, "clean": accuracies[best][0], "robust": accuracies[best][1], "samples": 9}


def test_validation_uses_validate_samples_samples(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(loop, "accuracy", lambda model, split, *_: (seen.append(split.index.tolist()), (0.5, 0.5))[1])
    run_job(toy_job(tmp_path / "a", epochs=1, validate_samples=4), toys)
    assert seen == [toys.valid.index[:4].tolist()]


class Untouchable(Split):
    """A split that raises when it is read."""

    def __getattribute__(self, name: str) -> object:
        if name in ("x", "y", "index", "batch", "take") and object.__getattribute__(self, "__dict__").get("armed"):
            raise AssertionError("training looked at the test split")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("config", [{}, {"ema": EMAConfig(), "patience": 1}, {"swa": SWAConfig()}])
def test_training_never_touches_the_test_split(tmp_path: Path, toys: DataSet, config: dict[str, Any]) -> None:
    test = Untouchable(toys.test.x, toys.test.y, toys.test.index)
    data = DataSet("toy", toys.train, toys.valid, test, toys.classes)
    assert data.digest == toys.digest  # computed before the split is closed: it identifies the data in job.json
    test.__dict__["armed"] = True
    job = run_job(toy_job(tmp_path / "a", Adversarial(**at_method()), **config), data)
    assert bits(job.folder) == bits(run_job(toy_job(tmp_path / "b", Adversarial(**at_method()), **config), toys).folder)
    with pytest.raises(AssertionError, match="looked at the test split"):
        _ = data.test.x


@pytest.mark.parametrize("value", [nan, float("inf"), float("-inf")])
def test_nonfinite_loss_stops_training_with_step_and_term(tmp_path: Path, toys: DataSet, value: float) -> None:
    job = toy_job(tmp_path / "a", Broken(at=5, value=value))
    with pytest.raises(FloatingPointError, match=r"the loss is -?(nan|inf) at step 5 \(term broken\); try"):
        run_job(job, toys)
    tensors, facts = snapshot.read(job.folder / "checkpoint.safetensors")
    assert facts["step"] == 4
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    assert not job.done
    with pytest.raises(FloatingPointError, match="at step 5"):  # a second run resumes and fails at the same step
        run_job(job, toys)


def test_folder_of_another_job_is_refused_and_unchanged(tmp_path: Path, toys: DataSet) -> None:
    job = run_job(toy_job(tmp_path / "a"), toys)
    before = bits(job.folder)
    others = [
        replace(job, seed=1),
        other(job, epochs=4),
        replace(job, model=ModelConfig(encoder="tiny", channels=1, width=5)),
        replace(job, validate=Noise(threat=THREAT)),
        replace(job, entry=replace(job.entry, method=Plain(smoothing=0.1))),
    ]
    for another in others:
        with pytest.raises(
            ValueError, match=r"holds a model of other settings( \(.*\))?; choose another --out or remove it"
        ):
            run_job(another, toys)
    with pytest.raises(ValueError, match="holds a model of other settings"):
        run_job(job, toy(51))
    assert bits(job.folder) == before
    run_job(job, toys)  # the same job is done: nothing to train
    assert bits(job.folder) == before


def test_finished_model_without_job_json_is_refused(tmp_path: Path, toys: DataSet) -> None:
    job = run_job(toy_job(tmp_path / "a"), toys)
    (job.folder / "job.json").unlink()
    with pytest.raises(ValueError, match="holds a model of other settings"):
        run_job(job, toys)


def test_job_that_cannot_be_built_claims_no_folder(tmp_path: Path, toys: DataSet) -> None:
    wide = replace(toy_job(tmp_path / "wide"), model=ModelConfig(encoder="tiny", channels=1, width=6))
    start = run_job(wide, toys).folder / "best.safetensors"
    for bad, expected in [
        (
            replace(toy_job(tmp_path / "a"), init_from=start),
            r"\.safetensors does not fit this model \(size",
        ),
        (replace(toy_job(tmp_path / "a"), init_from=tmp_path / "none.safetensors"), "there are no weights at"),
        (replace(toy_job(tmp_path / "a"), model=ModelConfig(encoder="tiny", depth=2)), "has no depth"),
        (toy_job(tmp_path / "a", augment=Augment(saturation=Saturation())), "saturation needs colors"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=expected) as refusal:
            run_job(bad, toys)
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / "a").exists()


def test_fine_tuning_starts_from_the_weights_of_a_file(tmp_path: Path, toys: DataSet) -> None:
    first = run_job(toy_job(tmp_path / "first", seed=3), toys)
    start = first.folder / "last.safetensors"
    still = OptimizerConfig(name="sgd", lr=0.0)
    tuned = run_job(replace(toy_job(tmp_path / "b", optimizer=still), init_from=start), toys)
    fresh = run_job(toy_job(tmp_path / "c", optimizer=still), toys)
    before, after = weights(first.folder), weights(tuned.folder)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved
    assert all(
        "running" in name or "num_batches" in name for name in moved
    )  # with a zero learning rate only batch norm changes
    assert not same(weights(fresh.folder), after)


def test_initial_weights_are_part_of_the_job(tmp_path: Path, toys: DataSet) -> None:
    first = run_job(toy_job(tmp_path / "first"), toys)
    start = tmp_path / "start.safetensors"
    start.write_bytes((first.folder / "last.safetensors").read_bytes())
    job = run_job(replace(toy_job(tmp_path / "b"), init_from=start), toys)
    tensors = weights(first.folder)
    snapshot.write(start, tensors | {"head.bias": tensors["head.bias"] + 1}, {})
    with pytest.raises(ValueError, match="other settings"):
        run_job(job, toys)


def test_seeds_give_different_and_reproducible_weights(tmp_path: Path, toys: DataSet) -> None:
    runs = [run_job(toy_job(tmp_path / f"{n}", seed=seed), toys).folder for n, seed in enumerate((0, 0, 1))]
    assert bits(runs[0]) == bits(runs[1])
    assert not same(weights(runs[0]), weights(runs[2]))


def test_the_log_has_the_share_of_the_gradient_that_easy_samples_hold() -> None:
    logits, y = Rng(0).normal(torch.empty(8, 3)), torch.arange(8) % 3
    losses = nn.functional.cross_entropy(logits, y, reduction="none")
    norms = (logits.softmax(1) - nn.functional.one_hot(y, 3)).norm(dim=1)[losses.argsort()]
    seen = (Outputs(logits, logits, torch.zeros(8, 3)), Outputs(logits, logits, logits))  # the adversarial pass is last
    expected = float(norms[:4].sum() / norms.sum())
    assert loop.easy(Terms(losses.mean(), {}, seen=seen), y) == {"easy": pytest.approx(expected, rel=1e-5)}
    assert loop.easy(Terms(losses.mean(), {}), y) == {}
    assert loop.easy(Terms(losses.mean(), {}, seen=(Outputs(logits, logits, logits * torch.inf),)), y) == {}
