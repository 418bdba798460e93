"""Bad input to every public name is refused in one clear sentence; the names are walked, so that none is forgotten."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast import Batch, LInf, Outputs, Rng, Rows, Threat
from holdfast.contracts import Attack
from holdfast.geometry import NORMS
from holdfast.methods.adversarial import Adversarial
from holdfast.recipes import kinds

THREAT = Threat(LInf(), 0.1)
PGD = holdfast.PGD(threat=THREAT, steps=2, keep="last")
ATTACKS = {kinds.member("attack", name).__name__: kinds.member("attack", name) for name in kinds.names("attack")}
METHODS = {kinds.member("method", name).__name__: kinds.member("method", name) for name in kinds.names("method")}
RESULTS = {"Analyzed", "Fitted", "Outputs", "Result"}
"""What calls return and nobody constructs."""

X, Y = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


class Net(nn.Module):
    """A network that returns what ``change`` makes of its logits."""

    def __init__(self, change: Callable[[Tensor], Any] = lambda z: z) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(4, 3), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layer(x))


MODELS: dict[str, tuple[Any, str]] = {
    "tuple": (lambda: Net(lambda z: (z, z)), "the model returned tuple for"),
    "probabilities": (lambda: Net(lambda z: z.softmax(1)), "the model seems to give probabilities"),
    "one logit": (lambda: Net(lambda z: z[:, :1]), "the model has one output but one for each class is needed"),
    "NaN": (lambda: Net(lambda z: z * torch.nan), "the model gives NaN or infinite outputs"),
    "images": (lambda: Net(lambda z: z[:, :, None, None]), "the model returned .* but logits"),
    "text": (lambda: "resnet18", "the model is a str"),
    "None": (lambda: None, "the model is a NoneType"),
}

SAMPLES: dict[str, tuple[tuple[Any, ...], str]] = {
    "no labels": ((X,), "but there are no labels; give y"),
    "few labels": ((X, Y[:5]), "has 12 samples but 5 labels"),
    "labels below 0": ((X, Y - 1), "has labels from -1 to 1 but labels start at 0"),
    "labels too large": ((X, Y + 1), "labels up to 3|no training sample of class 0"),
    "real labels": ((X, Y.float()), "has labels of type float32; give integers"),
    "text labels": ((X, list("abcabcabcabc")), "y has type <U1; give class numbers"),
    "NaN": ((X / 0 * 0, Y), "values of x that are NaN or infinite"),
    "outside the box": ((2 * X, Y), r"x spans \[.*\] but the threat allows \[0"),
    "empty": ((X[:0], Y[:0]), "is empty"),
    "empty loader": ((DataLoader(TensorDataset(X[:0], Y[:0])),), "is empty"),
    "triples": ((TensorDataset(X, Y, Y),), "a pair"),
    "unknown name": (("minst",), "unknown data set 'minst'; did you mean 'mnist'"),
    "a number": ((3,), "the data is a int; give x and y, a Dataset or a DataLoader"),
    "a path": ((Path("x"),), "the data is a PosixPath"),
    "other shape": ((torch.rand(12, 5), Y), "the model raised RuntimeError"),
    "integers": ((torch.zeros(12, 4, dtype=torch.int64), Y), "has x of type int64; give uint8"),
    "one sample": ((X[0], Y), "give x as"),
}

THREATS: dict[str, tuple[Any, str]] = {
    "no eps": ("linf", "threat is 'linf' but has the form norm:eps"),
    "unknown norm": ("l3:1", "unknown norm 'l3'"),
    "negative": ("linf:-1", "eps is -1"),
    "gray levels": ("linf:8", "write linf:8/255"),
    "pixels": ("l0:2.5", "l0 counts pixels"),
    "a number": (0.1, "threat must be a table or a text such as 'linf:8/255' but is 0.1"),
    "none": ([], "at least one is needed"),
}

RNGS = {"text": ("0", "rng is '0'"), "half": (0.5, "rng is 0.5"), "negative": (-1, "rng is -1")}


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=words) as refusal:
        call()
    message = str(refusal.value)
    assert "\n" not in message
    assert len(message) < 400


def made(cls: type, **change: Any) -> Any:
    """An attack in the first norm that it takes, or a method."""
    wanted = inspect.signature(cls).parameters
    given = {"attack": PGD, "source": Net(), "method": Adversarial(attack=PGD)}
    given = {name: value for name, value in given.items() if name in wanted}
    if cls is holdfast.Metric:
        pytest.importorskip("pytorch_metric_learning")
    if "threat" not in wanted:
        return cls(**given | change)
    for norm in NORMS.values():
        try:
            made = cls(threat=Threat(norm, 1.0 if norm.name == "l0" else 0.1), **given)
        except ValueError:
            continue
        return dataclasses.replace(made, **change)
    raise AssertionError(f"{cls} takes no norm")


def bad_values(hint: Any) -> Iterator[Any]:
    """Values that are not of a type: none for a type that is not checked at construction."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if int in parts and float not in parts:
        yield from (2.5, "3", True)
    elif float in parts:
        yield from ("0.1", float("nan"))
    elif any(typing.get_origin(part) is Literal for part in parts):
        yield from ("no such choice", 3)
    elif bool in parts or Threat in parts or Attack in parts:
        yield "linf:8/255"


SETTINGS = [
    (name, field, value)
    for name, cls in {**ATTACKS, **METHODS}.items()
    for field, hint in typing.get_type_hints(cls).items()
    if field in inspect.signature(cls).parameters
    for value in bad_values(hint)
]


@pytest.mark.parametrize(("name", "field", "value"), SETTINGS, ids=str)
def test_settings_of_another_type(name: str, field: str, value: Any) -> None:
    refused(lambda: made({**ATTACKS, **METHODS}[name], **{field: value}), f"{field} (is|in)|{value!r}")


def test_settings_are_walked() -> None:
    assert {name for name, *_ in SETTINGS} >= {*ATTACKS, *METHODS} - {"CURE", "LLR"}
    assert len(SETTINGS) > 200


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "rng as a number": ({"rng": 0}, r"rng is 0 but must be an Rng, .* write rng=Rng\(0\)"),
    "arrays": ({"x": X.numpy()}, "x is a ndarray but must be a tensor"),
    "a list of labels": ({"y": Y.tolist()}, "y is a list but must be a tensor"),
    "few labels": ({"y": Y[:3]}, "x has 12 samples and y 3; they must match"),
    "real labels": ({"y": Y.float()}, "class indices"),
    "one-hot labels": ({"y": nn.functional.one_hot(Y)}, "class indices"),
    "labels below 0": ({"y": Y - 1}, "labels span -1..1 but the model has classes 0..2"),
    "labels too large": ({"y": Y + 1}, r"labels span 1..3 but the model has classes 0..2"),
    "NaN": ({"x": X * torch.nan}, "x holds NaN or infinite values"),
    "integers": ({"x": (255 * X).byte()}, "x has type torch.uint8 but attacks need floating point"),
    "outside the box": ({"x": 2 * X}, r"x spans .* but the threat allows"),
    "double": ({"x": X.double()}, "x has dtype torch.float64 but the model torch.float32"),
    "other shape": ({"x": torch.rand(12, 5)}, "the model raised RuntimeError: mat1 and mat2 .*given inputs of shape"),
    "few rows": ({"y": Rows(Y, torch.arange(3))}, "the rows' index 3; they must match"),
} | {name: ({"model": model}, words) for name, (model, words) in MODELS.items()}

IGNORED = {
    # noise looks at nothing but x, black-box attacks take probabilities and decide by the largest score alone
    "Noise": {"labels below 0", "labels too large", "double", "other shape", *MODELS} - {"text", "None"},
    "Square": {"probabilities", "NaN", "one logit", "images"},
    "RayS": {"probabilities", "NaN", "one logit", "images"},
    "HopSkipJump": {"probabilities", "NaN", "one logit", "images"},
    "FeatureNorm": {"probabilities", "NaN", "one logit"},  # crafts on the last linear layer alone
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("case", CALLS)
def test_calls_of_attacks(name: str, case: str) -> None:
    if case in IGNORED.get(name, ()):
        pytest.skip("not the business of this attack")
    change, words = CALLS[case]
    if callable(change.get("model")):
        change = {"model": change["model"]()}
    if name in ("Transfer",) and case in MODELS and case not in ("text", "None"):
        pytest.skip("it crafts on its source")
    given = {"model": Net(), "x": X, "y": Y, "rng": Rng(0)} | change
    attack = made(ATTACKS[name])
    refused(lambda: attack(given["model"], given["x"], given["y"], rng=given["rng"]), words)


def batch(x: Tensor = X, y: Tensor = Y) -> Batch:
    """A batch with all that methods need."""
    return Batch(x, y, torch.arange(12), x, Batch(x, y, torch.arange(12)))


METHOD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "rng": ({"rng": 0}, "rng is 0 but must be an Rng"),
    "progress": ({"progress": 1.5}, "progress is 1.5 but it is the share of training"),
    "a pair": ({"batch": (X, Y)}, "the batch is a tuple but must be a Batch; holdfast.batches gives them"),
    "text": ({"model": "resnet18"}, "the model is a str"),
    "tuple": ({"model": Net(lambda z: (z, z))}, "the model returned tuple for"),
    "one logit": ({"model": Net(lambda z: z[:, :1])}, "the model has one output|labels span 0..2 but"),
    "labels too large": ({"batch": batch(y=Y + 1)}, "labels span 1..3 but the model has classes 0..2"),
    "labels below 0": ({"batch": batch(y=Y - 1)}, "labels span -1..1 but the model has classes 0..2"),
    "real labels": ({"batch": batch(y=Y.float())}, "class indices"),
    "NaN": ({"batch": batch(x=X * torch.nan)}, "x holds NaN or infinite values"),
    "integers": ({"batch": batch(x=(255 * X).byte())}, "torch.uint8 .* floating point"),
    "other shape": ({"batch": batch(x=X[:, :3])}, "the model raised RuntimeError: .*given inputs of shape"),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", METHOD_CALLS)
def test_calls_of_methods(name: str, case: str) -> None:
    given = {"model": Net(), "batch": batch(), "progress": 0.0, "rng": Rng(0)} | METHOD_CALLS[case][0]
    method = made(METHODS[name])
    call = lambda: method(given["model"], given["batch"], progress=given["progress"], rng=given["rng"])  # noqa: E731
    refused(call, METHOD_CALLS[case][1])


def test_methods_that_need_more_than_a_batch_say_where_it_comes_from() -> None:
    for bare in (Batch(X, Y, torch.arange(12)), Batch(X, Y, torch.arange(12), X)):
        refused(
            lambda bare=bare: holdfast.TLA(attack=PGD)(Net(), bare, progress=0, rng=Rng(0)),  # type: ignore[misc]
            r"this batch has no .*; give Batch\(x, y, index, positive=..., pool=...\).*holdfast.batches",
        )


def evaluate(model: Any, *data: Any, **change: Any) -> None:
    holdfast.evaluate(model, *data, **{"threat": "linf:0.1", "attacks": "fgsm", "progress": False} | change)


def judge(model: Any, x: Any, y: Any = None, **change: Any) -> None:
    holdfast.judge(model, x, x, y, **{"threat": "linf:0.1"} | change)


def analyze(model: Any, *data: Any, **change: Any) -> None:
    given = {"threat": "linf:0.1", "gallery": (X, Y), "k": 2, "steps": 2, "progress": False} | change
    holdfast.analyze(model, *data, **given)


def fit(model: Any, *data: Any, **change: Any) -> None:
    given = {"threat": "linf:0.1", "epochs": 1, "craft": "pgd:steps=1", "progress": False, "valid": 3} | change
    holdfast.fit(model, *data, **given)


FUNCTIONS = {"evaluate": evaluate, "judge": judge, "analyze": analyze, "fit": fit}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", MODELS)
def test_models(name: str, case: str) -> None:
    model, words = MODELS[case]
    refused(lambda: FUNCTIONS[name](model(), X, Y), words)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", SAMPLES)
def test_samples(name: str, case: str) -> None:
    data, words = SAMPLES[case]
    if name == "judge" and case in ("triples", "empty loader", "unknown name"):
        pytest.skip("x_adv would be of the same kind")
    refused(lambda: FUNCTIONS[name](Net(), *data), words)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", THREATS)
def test_threats(name: str, case: str) -> None:
    refused(lambda: FUNCTIONS[name](Net(), X, Y, threat=THREATS[case][0]), THREATS[case][1])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", RNGS)
def test_seeds(name: str, case: str) -> None:
    refused(lambda: FUNCTIONS[name](Net(), X, Y, rng=RNGS[case][0]), RNGS[case][1])


OTHERS: dict[str, list[tuple[Callable[[], object], str]]] = {
    "evaluate": [
        (lambda: evaluate({}, X, Y), "there is no model to evaluate"),
        (lambda: evaluate(Net(), X, Y, samples=0), "samples is 0 but must be a number of samples"),
        (lambda: evaluate(Net(), X, Y, attacks="pdg"), "unknown attack 'pdg'; did you mean 'pgd'"),
        (lambda: evaluate(Net(), X, Y, attacks=["fgsm", "fgsm"]), "the attack 'fgsm' is given twice"),
        (lambda: evaluate(Net(), X, Y, attacks=3), "an attack is 3 but must be a name, an attack or a function"),
        (lambda: evaluate(Net(), X, Y, attacks=lambda m, x, y: x[:, :3]), "returned a Tensor of shape .* for inputs"),
        (lambda: evaluate(Net(), X, Y, seconds=-1), "the budget is -1 seconds and inf passes; both must be above 0"),
        (lambda: evaluate(Net(), X, Y, passes="many"), "passes is 'many'"),
        (lambda: evaluate(Net(), X, Y, arithmetic="half"), "arithmetic is 'half' but it must be one of"),
        (lambda: evaluate(Net(), X, Y, crafting="fast"), "crafting is 'fast' but it must be one of"),
        (lambda: evaluate(lambda x: "yes", X, Y), "the model returned str for 8 inputs but scores"),
        (lambda: evaluate(Net, X, Y), r"the model is the class Net but a model is needed; write Net\(...\)"),
        (lambda: evaluate([Net(), Net()], X, Y), "the model is a list; give .* or a mapping from names to several"),
        (lambda: evaluate({1: Net()}, X, Y), "the name of a model is 1 but must be a text"),
        (
            lambda: evaluate(Net().double(), X, Y),
            "weights of type torch.float64 but is given float32; call model.float",
        ),
        (lambda: evaluate(Net(), X, Y, attacks=holdfast.PGD), r"the class PGD but an object is needed; write PGD\("),
        (lambda: evaluate(Net(), X, Y, threat="linf:nan"), "eps is nan"),
    ],
    "judge": [
        (lambda: holdfast.judge(Net(), X, X[:3], Y, "linf:0.1"), "has 3 samples but 12 labels"),
        (lambda: holdfast.judge(Net(), X, X[:, :3], Y, "linf:0.1"), "x_adv has shape .* but x has"),
        (lambda: holdfast.judge(Net(), X, (X, X, Y > 0), Y, "linf:0.1"), "x_adv is a tuple; .* foolbox returns"),
        (lambda: holdfast.judge(Net(), X, None, Y, "linf:0.1"), "x_adv is a NoneType; give a tensor"),
        (lambda: holdfast.judge(Net(), X, X * torch.nan, Y, "linf:0.1"), "adversarial set holds 48 values"),
    ],
    "analyze": [
        (lambda: analyze(Net(), X, Y, gallery="mnist"), "gallery is 'mnist' but must be training samples"),
        (lambda: analyze(Net(), X, Y, layer="fc"), "the model has no layer 'fc'; it has layer"),
        (lambda: analyze(Net(), X, Y, steps=0), "steps"),
        (lambda: analyze(Net(), X, Y, k=0), "k is"),
    ],
    "fit": [  # more in training/test_fit.py
        (lambda: fit(Net(), X, Y, method="tls"), "unknown method 'tls'"),
        (lambda: fit(nn.Linear, X, Y), r"making a model by Linear\(\) raised TypeError"),
        (lambda: fit({"net": Net()}, X, Y), "the model is a dict but"),
        (lambda: fit(Net(), X, Y, train=["batch"]), "train is a list but must be keys of the table"),
        (lambda: fit(Net(), X, Y, craft=PGD), "craft is a PGD but must be a text such as"),
        (lambda: fit(Net(), X, Y, valid="many"), "valid is 'many' but must be a share"),
        (lambda: fit(Net(), X, Y, out=3), "out is 3 but must be a path"),
    ],
    "batches": [
        (lambda: holdfast.batches(X, Y, needs="tla", epochs=1), "method is 'tla' but"),  # type: ignore[arg-type]
        (lambda: holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=0), "epochs is 0 but"),
        (lambda: holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=1, batch=0), "batch is 0 but"),
        (lambda: holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=1, device="gpu"), "device is 'gpu' but"),
        (lambda: holdfast.batches(X * torch.nan, Y, needs=holdfast.Plain(), epochs=1), "NaN or infinite"),
        (lambda: holdfast.batches(X, Y, needs=holdfast.Plain(), epochs=1, rng="a"), "rng is 'a'"),  # type: ignore[arg-type]
    ],
    "load_model": [
        (lambda: holdfast.load_model("tls", "nowhere"), "there is no zoo at nowhere"),
        (lambda: holdfast.load_model(3, Path(__file__).parents[1] / "zoo"), "unknown model 3"),  # type: ignore[arg-type]
        (lambda: holdfast.load_model("digits-tla", 3), "folder is 3 but must be a path"),  # type: ignore[arg-type]
    ],
    "adapt": [
        (lambda: holdfast.adapt("resnet18"), "the model is a str but"),  # type: ignore[arg-type]
        (lambda: holdfast.adapt(Net(), "fc"), "the model has no layer 'fc'; it has layer"),
    ],
    "arithmetic": [(lambda: holdfast.arithmetic("half").__enter__(), "arithmetic is 'half' but")],  # type: ignore[arg-type]
    "Threat": [
        (lambda: Threat("linf", 0.1), r"norm is 'linf' but must be one of LInf\(\)"),  # type: ignore[arg-type]
        (lambda: Threat(LInf(), "8/255"), "eps is '8/255' but must be a number"),  # type: ignore[arg-type]
        (lambda: Threat(LInf(), -1), "eps is -1 but"),
        (lambda: Threat(LInf(), 0.1, 1, 0), "low"),
        (lambda: Threat(LInf(), 0.1, "0", 1), "low is '0' but must be a number"),  # type: ignore[arg-type]
    ],
    "Detector": [
        (lambda: holdfast.Detector("means", X, X), "means is a str but must be a tensor"),  # type: ignore[arg-type]
        (lambda: holdfast.Detector(X, X, X), "means, whitening and constant have shapes"),
        (lambda: holdfast.Detector.fit(X.numpy(), Y.numpy()), "features is a ndarray but must be a tensor"),  # type: ignore[arg-type]
        (lambda: holdfast.Detector.fit(X, Y[:3]), "features have shape .* and labels"),
        (lambda: holdfast.Detector.fit(X * torch.nan, Y), "features hold NaN"),
    ],
    "Abstaining": [
        (lambda: holdfast.Abstaining("net", "d"), "the model is a str but"),  # type: ignore[arg-type]
        (lambda: holdfast.Abstaining(Net(), Net()), "the detector is a Net but must be a Detector"),  # type: ignore[arg-type]
    ],
    "Evasion": [(lambda: holdfast.Evasion("score"), "score is 'score' but must be a function")],  # type: ignore[arg-type]
    "Batch": [
        (lambda: Batch([0.1], [0], [0]), "x is a list but must be a tensor"),  # type: ignore[arg-type]
        (lambda: Batch(X, Y[:3], torch.arange(12)), "a batch has 12 x, 3 y and 12 index"),
        (lambda: Batch(X, Y, torch.arange(12), pool=X), "pool is a Tensor but must be a Batch"),  # type: ignore[arg-type]
    ],
    "Rows": [
        (lambda: Rows(Y, torch.arange(12))["target"], "this loss needs 'target' for every sample"),
        (lambda: Rows([0], [0]), "y is a list but must be a tensor"),  # type: ignore[arg-type]
        (lambda: Rows.of([0, 1]), "y is a list but must be a tensor"),  # type: ignore[arg-type]
    ],
    "Terms": [(lambda: holdfast.Terms(0.5, {}), "total is a float but must be a tensor")],  # type: ignore[arg-type]
    "Rng": [(lambda: Rng("0"), "the seed is '0' but must be a whole number")],  # type: ignore[arg-type]
    "L1": [(lambda: holdfast.L1(share=2.0), "share is 2.0"), (lambda: holdfast.L1(share="x"), "share is 'x'")],  # type: ignore[arg-type]
    "Classifier": [(lambda: holdfast.Classifier("mlp", nn.Linear(2, 2)), "the encoder is a str but")],  # type: ignore[arg-type]
    "Hypersphere": [
        (lambda: holdfast.Hypersphere(0, 3), "width is 0 and classes 3 but"),
        (lambda: holdfast.Hypersphere(2.5, 3), "width is 2.5 and classes 3 but"),  # type: ignore[arg-type]
        (lambda: holdfast.Hypersphere(2, 3, scale="10"), "scale is '10' but must be a number"),  # type: ignore[arg-type]
        (lambda: holdfast.Hypersphere(2, 3, scale=-1), "scale is -1 but"),
        (lambda: holdfast.Hypersphere(2, 3, weight_norm="no"), "weight_norm is 'no' but"),  # type: ignore[arg-type]
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, calls in OTHERS.items() for i in range(len(calls))])
def test_other_arguments(name: str, number: int) -> None:
    call, words = OTHERS[name][number]
    with pytest.raises((ValueError, KeyError, FileNotFoundError), match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_every_public_name_is_walked() -> None:
    plain = {"L0", "L2", "LInf"}  # take no arguments
    walked = {*ATTACKS, *METHODS, *OTHERS, *RESULTS, *plain}
    assert set(holdfast.__all__) - walked == set()
    assert issubclass(Outputs, tuple)


def test_numbers_of_numpy_are_numbers() -> None:
    assert Threat(LInf(), np.float32(0.5)) == Threat(LInf(), 0.5)  # type: ignore[arg-type]
    assert holdfast.PGD(threat=THREAT, steps=np.int64(2), step=np.float32(0.5)).steps == 2  # type: ignore[arg-type]
