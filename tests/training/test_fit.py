"""Training from Python: the loop of the command line, the batches of one's own loop, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import holdfast
from holdfast.contracts import Needs
from holdfast.recipes import kinds
from own_networks import Small, build, convolutional, dropping, probable, unflat
from tiny_study import bits, same, toy

THREAT = "linf:0.1"
TRAIN = {"batch": 8, "optimizer": {"lr": 0.02}}
SAMPLES = toy(60).train


def fit(model: Any = build, *data: Any, **options: Any) -> holdfast.Fitted:
    given = {"threat": THREAT, "epochs": 2, "craft": "pgd:steps=2", "train": TRAIN, "progress": False}
    return holdfast.fit(model, *(data or (SAMPLES.x, SAMPLES.y)), **given | options)


def built(make: Callable[[], nn.Module] = build, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def test_weights_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    monkeypatch.chdir(tmp_path)
    data = toy(60)
    parts = {"train": data.train, "test": data.test}
    np.savez("toy.npz", **{f"{key}_{part}": getattr(one, key) for part, one in parts.items() for key in ("x", "y")})
    done = call(
        *("train", "--model", "own_networks:build", "--data", "npz:toy.npz", "--threat", THREAT, "--method", "tla"),
        *("--epochs", "2", "--seed", "3", "--out", "out", "--set", "train.batch=8", "--set", "train.optimizer.lr=0.02"),
        *("--set", "craft.steps=2"),
    )
    assert done.code == 0, done.err
    stored = load_file("out/tla/seed-3/best.safetensors")
    found = fit(build, "npz:toy.npz", method="tla", rng=3)
    assert same(stored, found.model.state_dict())
    assert done.out.splitlines() == ["weights: out/tla/seed-3/best.safetensors", "next: holdfast evaluate out"]


@pytest.mark.parametrize("name", ["adversarial", "tla", "triplet"])
def test_a_loop_of_ones_own_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    attack = holdfast.PGD(threat=holdfast.Threat(holdfast.LInf(), 0.1), steps=2, keep="last")
    method: Any = holdfast.Adversarial(attack=attack) if name != "tla" else holdfast.TLA(attack=attack, pool=12)
    if name == "triplet":
        method = holdfast.Triplet(method=method, pool=12)
    model, data = built(), toy(60)
    fit(built(), data, method=method, out=tmp_path, rng=5)
    optimizer = torch.optim.Adam(model.parameters(), 0.02, fused=True)
    model.train()
    for batch, progress, rng in holdfast.batches(data, needs=method, epochs=2, batch=8, rng=5):
        loss = method(model, batch, progress=progress, rng=rng).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert same(load_file(tmp_path / "last.safetensors"), model.state_dict())


@pytest.mark.parametrize("method", kinds.names("method"))
def test_every_method_trains_a_network_of_the_user_from_its_weights(method: str) -> None:
    pretrained = built()
    before = {name: value.clone() for name, value in pretrained.named_parameters()}
    still = {"optimizer": {"name": "sgd", "lr": 0.0}, "batch": 8}
    named = {"metric": "metric:method=adversarial,loss=ContrastiveLoss", "triplet": "triplet:method=adversarial"}
    chosen = named.get(method, method)
    fit(pretrained, method=chosen, train=still, epochs=1)
    assert same(before, dict(pretrained.named_parameters()))
    trained = fit(pretrained, method=chosen, epochs=1)
    assert trained.model is pretrained
    assert not pretrained.training
    moved = [name for name, value in pretrained.named_parameters() if not torch.equal(value, before[name])]
    assert moved == list(before)
    assert all(value.isfinite().all() for value in pretrained.state_dict().values())


class StopError(Exception):
    """The interruption of a training."""


def test_a_stopped_training_continues_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(dropping, method="tla", out=tmp_path / "whole")

    def stop(_: object, what: str, done: int, *rest: object) -> None:
        if what == "train tla" and done == 5:
            raise StopError

    given = built(dropping)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    for model, out in ((dropping, "a"), (given, "b")):
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.progress.Progress.report", stop)
            with pytest.raises(StopError):
                fit(model, method="tla", out=tmp_path / out)
        assert not (tmp_path / out / "trained.json").exists()
    assert same(before, given.state_dict())  # so that the same call continues
    fit(dropping, method="tla", out=tmp_path / "a")
    fit(given, method="tla", out=tmp_path / "b")
    first, second = bits(tmp_path / "whole"), bits(tmp_path / "a")
    assert [name for name in first if first[name] != second[name]] == []
    assert same(load_file(tmp_path / "b" / "best.safetensors"), given.state_dict())
    again = fit(dropping, method="tla", out=tmp_path / "whole")
    assert same(again.model.state_dict(), whole.model.state_dict())
    assert again.history == whole.history


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    fit(built(seed=1), out=tmp_path)
    others: dict[str, dict[str, Any]] = {
        r"other settings \(the same network with other first weights: build it after torch.manual_seed": {
            "model": built(seed=2)
        },
        r"other settings \(network\)": {"model": built(dropping)},
        r"other settings \(method\)": {"method": "alp"},
        r"other settings \(seed\)": {"rng": 1},
        "trained with crafting = 'auto' but 'module' is asked for": {"crafting": "module"},
    }
    for words, change in others.items():
        with pytest.raises(ValueError, match=words):
            fit(**{"model": built(seed=1), "out": tmp_path} | change)
    with pytest.raises(ValueError, match=r"other settings \(data\)"):
        fit(built(seed=1), SAMPLES.x[:40], SAMPLES.y[:40], out=tmp_path)


def test_the_record_of_a_training(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    found = fit(method="trades:beta=2", out=tmp_path, valid=9)
    assert torch.equal(torch.get_rng_state(), state)
    accuracy = [row for row in found.history if row["split"] == "valid"]
    best = max(accuracy, key=lambda row: row["robust"])
    assert (found.robust.value, found.clean.value, found.epoch) == (best["robust"], best["clean"], best["epoch"])
    assert found.robust.n == 9
    assert found.facts["epochs"] == 2
    assert found.facts["forwards"] > 0
    text = str(found)
    assert text.startswith(f"trades:beta=2: weights of epoch {found.epoch} of 2, ")
    assert f"pgd:steps=10  {found.robust}\n" in text
    assert text.endswith(f"weights: {tmp_path / 'best.safetensors'}")
    assert "weights: " not in str(fit()).splitlines()[-1]


def test_data_may_be_arrays_a_dataset_a_loader_or_a_data_set() -> None:
    pairs = TensorDataset(SAMPLES.x, SAMPLES.y)
    expected = fit().model.state_dict()
    forms: list[tuple[Any, ...]] = [
        (SAMPLES.x.numpy(), SAMPLES.y.tolist()),
        (pairs,),
        (DataLoader(pairs, batch_size=8),),
        (DataLoader(pairs, batch_size=8, shuffle=True),),
    ]
    for data in forms:
        assert same(fit(build, *data).model.state_dict(), expected)
    loader = DataLoader(pairs, batch_size=8, shuffle=True)
    assert same(fit(build, loader, train={"optimizer": {"lr": 0.02}}).model.state_dict(), expected)  # its batch size
    with pytest.raises(ValueError, match="loader shuffles or drops its last batch"):
        fit(build, DataLoader(pairs, batch_size=8, sampler=SubsetRandomSampler(range(20))))
    whole = toy(60)
    assert fit(build, whole).robust.n == len(whole.valid)


def test_features_may_be_the_output_of_a_named_layer() -> None:
    net = built(convolutional)
    with pytest.raises(ValueError, match="TLA compares features, which are the input of the last Linear layer, but"):
        fit(net, method="tla")
    with pytest.raises(ValueError, match="Triplet compares features"):
        fit(net, method="triplet:method=adversarial")
    fit(net, method="tla:layer=body", epochs=1)
    fit(holdfast.adapt(built(convolutional), "body"), method="triplet:method=adversarial", epochs=1)
    fit(built(convolutional), method="trades", epochs=1)
    with pytest.raises(ValueError, match="the model has no layer 'boddy'; it has body, last"):
        fit(net, method="tla:layer=boddy")


class Odd(Small):
    """A network that returns what ``change`` makes of the logits."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(super().forward(x))


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "probabilities": (probable, {}, "the model seems to give probabilities"),
    "tuple": (lambda: Odd(lambda z: (z, z)), {}, "the model returned tuple for 8 inputs but logits"),
    "one logit": (lambda: Odd(lambda z: z[:, :1]), {}, "the model has one output but one for each class is needed"),
    "NaN": (lambda: Odd(lambda z: z * torch.nan), {}, "the model gives NaN or infinite outputs"),
    "few": (lambda: Odd(lambda z: z[:, :2]), {}, "the model has 2 outputs but own has labels up to 2"),
    "features": (unflat, {}, r"the model returned \(8, 4, 2, 2\) for 8 inputs but logits"),
    "other shape": (lambda: nn.Linear(3, 3), {}, r"the model raised RuntimeError: .* \(given 8 samples of shape"),
    "text": ("mlp", {}, "the model is a str but a torch.nn.Module, or what makes one, is trained"),
    "no module": (lambda: [3], {}, "the model is a list but a torch.nn.Module"),
    "frozen": (lambda: built().requires_grad_(False), {}, "no parameter of the network has requires_grad"),
    "method": (build, {"method": "tls"}, "unknown method 'tls'; did you mean 'tla'"),
    "setting": (build, {"method": "tla:lamda1=2"}, "unknown key 'lamda1' in methods.method; did you mean 'lambda1'"),
    "no method": (build, {"method": 3}, "method is 3 but must be a name of `holdfast list methods`, or a method"),
    "threat": (build, {"threat": "linf"}, "threat is 'linf' but has the form norm:eps"),
    "threats": (build, {"threat": ["linf:0.1", "l2:1"]}, "training is at one threat but 2 are given"),
    "epochs": (build, {"epochs": 0}, "epochs is 0 but must be at least 1"),
    "half an epoch": (build, {"epochs": 1.5}, "train.epochs is 1.5: input should be a valid integer"),
    "key": (build, {"train": {"bach": 8}}, "unknown key 'bach' in .*; did you mean 'batch'"),
    "craft": (build, {"craft": "pdg"}, "craft: unknown attack 'pdg'; did you mean 'pgd'"),
    "craft at the boundary": (build, {"craft": "pgd:keep=fooled"}, 'training needs an attack with keep="last"'),
    "valid": (build, {"valid": 2.0}, "valid = 2.0 asks to hold out 0 of 24 training samples"),
    "rng": (build, {"rng": -1}, "rng is -1 but must be a seed"),
    "arithmetic": (build, {"arithmetic": "half"}, "arithmetic is 'half' but"),
    "crafting": (build, {"crafting": "fast"}, "crafting is 'fast' but it must be one of auto, module"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str) -> None:
    model, change, words = BAD[name]
    with pytest.raises((ValueError, RuntimeError), match=words) as refusal:
        fit(model, SAMPLES.x[:24], SAMPLES.y[:24], **change)
    assert "\n" not in str(refusal.value)


X, Y = SAMPLES.x, SAMPLES.y
BAD_DATA: dict[str, tuple[tuple[Any, ...], str]] = {
    "no labels": ((X,), "x has shape .* but there are no labels"),
    "few labels": ((X, Y[:5]), "has 42 samples but 5 labels"),
    "gap": ((X, Y * 2), "own has 5 classes but no training sample of class 1"),
    "below 0": ((X, Y - 1), "has labels from -1 to 1 but labels start at 0"),
    "real labels": ((X, Y.float()), "has labels of type float32; give integers"),
    "NaN": ((X * torch.nan, Y), "values of x that are NaN"),
    "pixels to 255": ((X * 255, Y), r"x spans \[.*\] but the threat allows \[0"),
    "empty": ((X[:0], Y[:0]), "is empty"),
    "empty loader": ((DataLoader(TensorDataset(X[:0], Y[:0])),), "the given set is empty"),
    "triples": ((TensorDataset(X, Y, Y),), "is a tuple but a pair"),
    "name": (("minst",), "unknown data set 'minst'; did you mean 'mnist'"),
    "text and labels": (("digits", Y), "x is 'digits', the name of a data set, which has labels of its own"),
}


def batches(_: Any, *data: Any) -> None:
    holdfast.batches(*data, needs=holdfast.Plain(), epochs=1)


CALLS = [(fit, name) for name in BAD_DATA]  # batches has no threat, and holds no samples out
CALLS += [(batches, name) for name in BAD_DATA if name not in ("gap", "pixels to 255")]


@pytest.mark.parametrize(("call", "name"), CALLS)
def test_bad_data_is_one_sentence(call: Callable[..., Any], name: str) -> None:
    data, words = BAD_DATA[name]
    with pytest.raises((ValueError, TypeError), match=words) as refusal:
        call(build, *data)
    assert "\n" not in str(refusal.value)


def test_batches_hold_what_the_method_needs() -> None:
    plain = next(holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=1, batch=7))
    assert (plain.batch.positive, plain.batch.pool, plain.progress) == (None, None, 0.0)
    steps = list(holdfast.batches(X, Y, needs=Needs(positive=True, pool=5), epochs=2, batch=7))
    assert len(steps) == 12
    assert [step.progress for step in steps] == [number / 12 for number in range(12)]
    for batch, *_ in steps:
        assert batch.pool is not None
        assert len(batch.pool) == 5
        assert torch.equal(batch.x, X[batch.index])
        assert batch.positive is not None
        found = [int((one == X).flatten(1).all(1).nonzero()) for one in batch.positive]
        assert torch.equal(Y[found], batch.y)
        assert all(a != b for a, b in zip(found, batch.index.tolist(), strict=True))
    flipped = next(holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=1, batch=42, augment={"flip": {}})).batch
    assert not torch.equal(flipped.x, X[flipped.index])
    for change, words in (
        ({"batch": 0}, "batch is 0 but"),
        ({"needs": 3}, "method is 3 but"),
        ({"epochs": -1}, "epochs"),
    ):
        with pytest.raises(ValueError, match=words):
            holdfast.batches(X, Y, **{"needs": holdfast.Plain(), "epochs": 1} | change)  # type: ignore[arg-type]
