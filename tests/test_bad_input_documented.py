"""Bad input to what the documentation imports, and to encoders, heads, certifiers, learners and the analysis.

The names are walked, so that none is forgotten; those of ``holdfast`` itself are in ``test_bad_input``.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast
from holdfast import L2, Detector, LInf, Rng, Threat
from holdfast.analysis.detection import detection, load_detector, rejection, save_detector
from holdfast.analysis.drift import drift
from holdfast.analysis.head import easy_share, head
from holdfast.analysis.landscape import landscape
from holdfast.analysis.linearity import linearity
from holdfast.analysis.neighborhoods import neighborhoods
from holdfast.analysis.projection import projection
from holdfast.analysis.separation import separation
from holdfast.analysis.strength import strength
from holdfast.attacks import from_numpy
from holdfast.attacks.autoattack import AutoAttack
from holdfast.certify.crown import CROWN
from holdfast.certify.ibp import IBP
from holdfast.certify.latent_neighbors import LatentNeighbors
from holdfast.certify.neighbors import Neighbors
from holdfast.certify.smoothing import Smoothing
from holdfast.crafting import using
from holdfast.data.from_torch import from_dataset, from_loader
from holdfast.learners import ARML, ITML, LMNN, NCA, Euclidean, MahalanobisKNN
from holdfast.models.classifier import adapt, layer_features
from holdfast.models.heads.linear import Linear
from holdfast.models.layouts import from_trades
from holdfast.models.weights import load_into, read_state
from holdfast.recipes import kinds
from holdfast.zoo import card

X, Y = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
POINTS, LABELS = X.numpy().astype(np.float64), Y.numpy()
NET = nn.Linear(4, 3)
PAIRS = TensorDataset(X, Y)
DETECTOR = Detector.fit(X, Y)
NEIGHBORS = Neighbors(points=X.double(), labels=Y)

Cases = list[tuple[Callable[[], object], str]]


def certifier(cls: Any) -> Cases:
    """What the certifiers of networks have in common."""
    return [
        (lambda: cls(model="net"), "model is 'net' but it must be a torch.nn.Module"),
        (lambda: cls(model=NET, radii=(-1.0,)), "radi"),
        (lambda: cls(model=NET)("x", rng=Rng(0)), "x is a str"),
        (lambda: cls(model=NET)(X * torch.nan, rng=Rng(0)), "NaN"),
        (lambda: cls(model=NET)(X[:, :3], rng=Rng(0)), "the network raised RuntimeError"),
    ]


def learner(cls: Any) -> Cases:
    """What the learners of metrics have in common."""
    return [
        (lambda: cls().fit(POINTS, LABELS[:5]), "inconsistent numbers of samples"),
        (lambda: cls().fit(POINTS * np.nan, LABELS), "X contains NaN or inf"),
        (lambda: cls().fit(POINTS[:, 0], LABELS), "Expected 2D array"),
        (lambda: cls().fit(POINTS, POINTS[:, 0]), "Unknown label type"),
        (lambda: cls().fit(POINTS, 0 * LABELS), "y has one class"),
        (lambda: cls().fit(POINTS[:0], LABELS[:0]), "0 sample"),
    ]


def encoder(cls: Any) -> Cases:
    """What encoders have in common."""
    return [
        (lambda: cls(3), "shape is 3"),
        (lambda: cls("3x32x32"), "shape is '3x32x32'"),
        (lambda: cls((3, 32, 32), activation="gelu"), "activation is 'gelu'"),
        (lambda: cls((3, 32, 32), width=0), "width is 0"),
        (lambda: cls((3, 32, 32), width=2.5), "width is 2.5"),
    ]


CASES: dict[Any, Cases] = {
    LatentNeighbors: [
        *certifier(LatentNeighbors)[:2],
        (lambda: LatentNeighbors(model=NET, k=2), "k is 2 but must be odd"),
        (lambda: LatentNeighbors(model=NET, points=X), "points and labels belong together"),
        (lambda: LatentNeighbors(model=NET, points=X * torch.nan, labels=Y), "NaN"),
        (lambda: LatentNeighbors(model=NET, points=X, labels=0 * Y), "the gallery has 1 labels"),
        (lambda: LatentNeighbors(model=NET, matrix=torch.eye(4)), 'distance is "euclidean", which has no matrix'),
        (lambda: LatentNeighbors(model=NET)(X, rng=Rng(0)), "nearest neighbors need a gallery"),
    ],
    layer_features: [(lambda: layer_features(adapt(NET), X, ["body"]), "the model has no layer 'body'")],
    AutoAttack: [(lambda: AutoAttack(threat=Threat(L2(), 0.1), version="fast"), "version is 'fast'")],  # type: ignore[arg-type]
    from_numpy: [
        (lambda: from_numpy("predict"), "predict is a str but must be a function"),  # type: ignore[arg-type]
        (lambda: from_numpy(lambda x: "yes")(X), "the function returned <U3 but scores or class indices"),
    ],
    using: [(lambda: using("fast").__enter__(), "crafting is 'fast' but")],  # type: ignore[arg-type]
    from_dataset: [
        (lambda: from_dataset(3, PAIRS), "the train set is a int but must be a Dataset"),  # type: ignore[arg-type]
        (lambda: from_dataset(PAIRS, "test"), "the test set is a str but must be a Dataset"),  # type: ignore[arg-type]
        (lambda: from_dataset(PAIRS, PAIRS, valid="many"), "valid is 'many' but"),  # type: ignore[arg-type]
        (lambda: from_dataset(PAIRS, PAIRS, seed="0"), "the seed is '0' but"),  # type: ignore[arg-type]
        (lambda: from_dataset(TensorDataset(X[:0], Y[:0]), PAIRS), "the train set is empty"),
        (lambda: from_dataset(TensorDataset(X, Y - 1), PAIRS), "labels from -1 to 1"),
    ],
    from_loader: [(lambda: from_loader(PAIRS, PAIRS), "the train loader is a TensorDataset but")],  # type: ignore[arg-type]
    from_trades: [
        (lambda: from_trades("state"), "the weights hold a str where named tensors are needed"),  # type: ignore[arg-type]
        (lambda: from_trades({"x": X}), "'x' is not in the layout of TRADES"),
    ],
    load_into: [
        (lambda: load_into("net", {}), "the model is a str but"),  # type: ignore[arg-type]
        (lambda: load_into(NET, "state"), "the weights hold a str where"),  # type: ignore[arg-type]
        (lambda: load_into(NET, {"weight": 1}), "the weights hold a int where"),  # type: ignore[dict-item]
        (lambda: load_into(NET, {}), "the weights do not fit the model"),
    ],
    read_state: [
        (lambda: read_state(3), "path is 3 but must be a path"),  # type: ignore[arg-type]
        (lambda: read_state("nowhere.pt"), "there are no weights at nowhere.pt"),
    ],
    save_detector: [
        (lambda: save_detector("detector", "d"), "the detector is a str but"),  # type: ignore[arg-type]
        (lambda: save_detector(DETECTOR, 3), "path is 3 but must be a path"),  # type: ignore[arg-type]
    ],
    load_detector: [
        (lambda: load_detector(3), "path is 3 but must be a path"),  # type: ignore[arg-type]
        (lambda: load_detector("nowhere"), "nowhere"),
        (lambda: load_detector(__file__), "test_bad_input_documented.py"),
    ],
    card: [(lambda: card(3, Path(__file__).parents[1] / "zoo"), "unknown model 3")],  # type: ignore[arg-type]
    Linear: [
        (lambda: Linear(0, 3), "width is 0 and classes 3 but"),
        (lambda: Linear(2.5, 3), "width is 2.5 and classes 3 but"),  # type: ignore[arg-type]
    ],
    CROWN: [*certifier(CROWN), (lambda: CROWN(model=NET, norm="linf"), "norm is 'linf'")],  # type: ignore[arg-type]
    IBP: [*certifier(IBP), (lambda: IBP(model=NET, box=(1.0, 0.0)), "box")],
    Smoothing: [
        *certifier(Smoothing),
        (lambda: Smoothing(model=NET, sigma=-1.0), "sigma is -1.0"),
        (lambda: Smoothing(model=NET, alpha=2.0), "alpha is 2.0"),
        (lambda: Smoothing(model=NET)(X, rng=0), "rng is 0 but must be an Rng"),  # type: ignore[arg-type]
    ],
    Neighbors: [
        (lambda: Neighbors(points=POINTS, labels=Y), "points is a ndarray but must be a tensor"),  # type: ignore[arg-type]
        (lambda: Neighbors(points=X, labels=Y - 1), "give 12 integers from 0"),
        (lambda: Neighbors(points=X, labels=Y, k=2), "k is 2"),
        (lambda: NEIGHBORS(X[:, :3].double(), rng=Rng(0)), "x has samples of shape"),
        (lambda: NEIGHBORS.predict("x"), "x is a str"),  # type: ignore[arg-type]
    ],
    MahalanobisKNN: [
        (lambda: MahalanobisKNN(metric="arml").fit(POINTS, LABELS), "metric is 'arml' but must be a learner"),
        (lambda: MahalanobisKNN(n_neighbors=2).fit(POINTS, LABELS), "n_neighbors is 2 but must be an odd number"),
        (lambda: MahalanobisKNN().fit(POINTS, LABELS).certify(POINTS[:, :3]), "X has 3 features"),
        (lambda: MahalanobisKNN().predict(POINTS), "not fitted yet"),
        *learner(MahalanobisKNN),
    ],
    ARML: [*learner(ARML), (lambda: ARML(max_iter=0).fit(POINTS, LABELS), "max_iter is 0")],
    ITML: [*learner(ITML), (lambda: ITML(gamma=-1).fit(POINTS, LABELS), "gamma is -1")],
    LMNN: [*learner(LMNN), (lambda: LMNN(n_neighbors=0).fit(POINTS, LABELS), "n_neighbors is 0")],
    NCA: [*learner(NCA), (lambda: NCA(max_iter="many").fit(POINTS, LABELS), "max_iter")],
    Euclidean: learner(Euclidean)[1:3],  # learns nothing, so that labels are not read
    detection: [
        (lambda: detection([0.1, 0.2], [True]), "scores have shape"),
        (lambda: detection([np.nan, 0.2], [True, False]), "scores hold 1 NaN"),
        (lambda: detection([], []), "scores"),
    ],
    rejection: [(lambda: rejection(0.5, [0.1], [1], [0.2], [True]), "scores have shape")],
    drift: [
        (lambda: drift(np.zeros((2, 12)), LABELS, np.zeros((3, 4))), "shape"),
        (lambda: drift(np.full((2, 12, 4), np.nan), LABELS, np.zeros((3, 4))), "NaN"),
    ],
    head: [(lambda: head(POINTS, LABELS[:3], np.zeros((3, 4)), np.zeros((12, 3))), "shape|labels")],
    easy_share: [(lambda: easy_share(np.zeros((12, 3)), LABELS[:3]), "shape|labels")],
    landscape: [(lambda: landscape(np.zeros((12, 3)), [0.0]), "at is")],
    linearity: [(lambda: linearity(np.zeros((12, 3)), [0.1], [1]), "shape")],
    neighborhoods: [
        (lambda: neighborhoods(POINTS, LABELS, POINTS, LABELS, k=(0,)), "k is"),
        (lambda: neighborhoods(POINTS, LABELS[:3], POINTS, LABELS, k=(1,)), "shape|labels"),
        (lambda: neighborhoods(POINTS * np.nan, LABELS, POINTS, LABELS, k=(1,)), "NaN"),
    ],
    projection: [
        (lambda: projection(POINTS, POINTS[:, :3]), "shape|dimensions"),
        (lambda: projection(POINTS * np.nan, POINTS), "NaN"),
    ],
    separation: [
        (lambda: separation(POINTS, LABELS, POINTS[:3], LABELS), "give pairs"),
        (lambda: separation(POINTS * np.nan, LABELS, POINTS, LABELS), "NaN"),
    ],
    strength: [(lambda: strength(np.zeros((12, 3), bool), LABELS, [0.1]), "shape|values")],
    **{cls: encoder(cls) for cls in (kinds.member("encoder", name) for name in kinds.names("encoder"))},
}
METHODS_OF: Cases = [  # of what calls return
    (lambda: result()["other"], "there is no model 'other' in this result; it has Net"),
    (lambda: result().page(3), "path is 3 but must be a path"),
    (lambda: result().save(3), "folder is 3 but must be a path"),
    (lambda: DETECTOR.score("x"), "features is a str but must be a tensor"),  # type: ignore[arg-type]
    (lambda: DETECTOR.score(X[:, :3]), "features have shape"),
    (lambda: DETECTOR.calibrate(X, "many"), "rate is 'many' for 12 samples"),  # type: ignore[arg-type]
    (lambda: Threat(LInf(), 0.1).project(X[:, :3], X), r"x_adv has shape \(12, 3\) but x has \(12, 4\)"),
    (lambda: Threat(LInf(), 0.1).contains("x", X), "x_adv is a str but must be a tensor"),  # type: ignore[arg-type]
    (lambda: Threat(LInf(), 0.1).check(POINTS), "x is a ndarray but must be a tensor"),  # type: ignore[arg-type]
]


def result() -> holdfast.Result:
    return holdfast.evaluate({"Net": NET}, X, Y, threat="linf:0.1", attacks="noise", progress=False)


def documented() -> Iterator[Any]:
    """What the code of a page imports from modules of the package."""
    root = Path(__file__).parents[1]
    for page in [root / "README.md", *(root / "docs").glob("*.md")]:
        for module, names in re.findall(
            r"^from (holdfast\.[\w.]+) import (.+)$", page.read_text("utf-8"), re.MULTILINE
        ):
            for name in names.split("#")[0].split(","):
                yield getattr(importlib.import_module(module), name.strip())


def members() -> Iterator[Any]:
    """Encoders, heads, certifiers, learners, and the functions of the analysis."""
    for kind in ("encoder", "head", "certifier"):
        yield from (kinds.member(kind, name) for name in kinds.names(kind))  # type: ignore[arg-type]
    yield from (getattr(importlib.import_module("holdfast.learners"), name) for name in holdfast.learners.__all__)
    for path in sorted((Path(holdfast.__file__).parent / "analysis").glob("[a-z]*.py")):
        module = importlib.import_module(f"holdfast.analysis.{path.stem}")
        for name, one in inspect.getmembers(module, inspect.isfunction):
            if one.__module__ == module.__name__ and not name.startswith("_"):
                yield one


def test_every_documented_name_and_member_is_walked() -> None:
    known = {getattr(holdfast, name) for name in holdfast.__all__}
    names = set(documented()) | set(members())
    assert {getattr(one, "__qualname__", one) for one in names - known - set(CASES)} == set()
    assert len(names) > 30


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(call, words, id=f"{getattr(one, '__qualname__', one)}-{number}")
        for one, cases in {**CASES, "results": METHODS_OF}.items()
        for number, (call, words) in enumerate(cases)
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, KeyError, FileNotFoundError), match=words) as refusal:
        call()
    if type(refusal.value).__module__ != "sklearn.exceptions" and "Expected 2D array" not in words:
        assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400
