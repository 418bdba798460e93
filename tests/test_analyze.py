"""One call that looks inside: numbers equal scikit-learn's and the analyses' own on the features of the network."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

import holdfast
from holdfast.analysis.separation import separation
from holdfast.models.detector import Detector

THREAT = "linf:0.1"


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


X, Y = digits()
GALLERY = (X[:400], Y[:400])
QUERIES = (X[1000:1100], Y[1000:1100])


def trained(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(GALLERY[0]), GALLERY[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


NET = trained()


def analyze(*given: Any, **options: Any) -> holdfast.Analyzed:
    defaults: dict[str, Any] = {"gallery": GALLERY, "threat": THREAT, "steps": 8, "k": 5, "progress": False}
    return holdfast.analyze(*given, **defaults | options)


@pytest.fixture(scope="module")
def result() -> holdfast.Analyzed:
    return analyze({"net": NET}, *QUERIES)


def features(x: Any) -> Any:
    with torch.no_grad():
        return NET[1](NET[0](torch.as_tensor(x))).numpy()


def test_natural_features_and_accuracy_are_those_of_the_network(result: holdfast.Analyzed) -> None:
    found = result["net"]
    assert np.allclose(found.natural, features(QUERIES[0]), atol=1e-5)
    assert found.clean.successes == int((NET(QUERIES[0]).argmax(1) == QUERIES[1]).sum())
    assert found.under[0].accuracy.value < found.clean.value - 0.2


def test_neighbors_are_those_of_scikit_learn(result: holdfast.Analyzed) -> None:
    knn = KNeighborsClassifier(5, metric="cosine").fit(features(GALLERY[0]), GALLERY[1].numpy())
    for queries, found in (
        (result["net"].natural, result["net"].neighbors),
        (result["net"].under[0].features, result["net"].under[0].neighbors),
    ):
        assert np.array_equal(found.votes[:, -1], knn.predict(queries))
        assert found.accuracy[0].value == knn.score(queries, QUERIES[1].numpy())


def test_separation_and_detection_are_computed_from_the_same_features(result: holdfast.Analyzed) -> None:
    natural, found, y = result["net"].natural, result["net"].under[0], QUERIES[1].numpy()
    with torch.no_grad():
        label = NET[2](torch.tensor(found.features)).argmax(1).numpy()
        clean = NET(QUERIES[0]).argmax(1).numpy()
        detector = Detector.fit(torch.from_numpy(features(GALLERY[0])), GALLERY[1])
        scores = [detector.score(torch.tensor(each)).numpy() for each in (natural, found.features)]
    expected = separation(natural, y, found.features, label)
    assert np.array_equal(found.separation.r.each, expected.r.each, equal_nan=True)
    assert np.array_equal(found.separation.r_prime.each, expected.r_prime.each)
    wrong = np.concatenate([clean != y, label != y])
    assert found.detection.auc.value == pytest.approx(roc_auc_score(wrong, -np.concatenate(scores)), abs=1e-3)


def test_an_attack_that_knows_the_detector_is_harder_to_detect(result: holdfast.Analyzed) -> None:
    found = result["net"].under[0]
    assert found.detection_aware.auc.value < found.detection.auc.value - 0.05
    assert found.detection_aware.wrong >= found.detection.wrong  # it is misclassified first, and evades then


def test_drift_starts_at_the_clean_features_and_ends_nearer_to_a_false_class(result: holdfast.Analyzed) -> None:
    found = result["net"].drift
    assert len(found.moved) == 9
    assert found.moved[0].value == pytest.approx(0, abs=1e-6)
    assert found.moved[-1].value > 0.001
    assert found.home[-1].value < found.home[0].value - 0.2


def test_the_table_names_models_and_has_intervals(result: holdfast.Analyzed) -> None:
    text, found = str(result), result["net"].under[0]
    assert f"r', to the true class (low is good)   {found.separation.r_prime.average}" in text
    assert f"detection AUC (0.5 is chance)         {found.detection.auc}" in text
    assert "5-NN accuracy, PGD-8, %" in text
    assert "n = 100, drift of 100; linf" in text
    assert analyze({"<b>": NET}, *QUERIES)._repr_html_().count("&lt;b&gt;") >= 1
    with pytest.raises(KeyError, match="there is no model 'other' in this result; it has net"):
        result["other"]


def test_two_levels_and_two_numbers_of_neighbors_have_rows_of_their_own() -> None:
    result = analyze({"net": NET}, *QUERIES, eps=[0.1, 0.03], steps=[8, 4], k=[5, 20])
    found, text = result["net"], str(result)
    assert [under.name for under in found.under] == ["PGD-4 at linf 0.03", "PGD-8 at linf 0.1"]
    for under in found.under:
        average = re.escape(str(under.separation.r_prime.average))
        assert re.search(rf"r' at {under.eps}, to the true class \(low is good\) +{average}", text)
        assert all(f"{k}-NN accuracy, PGD-{under.steps} at {under.eps}, %" in text for k in (5, 20))
    assert found.under[0].accuracy.value > found.under[1].accuracy.value


def test_models_are_compared_on_the_classes_they_share() -> None:
    unmoved = nn.Sequential(*trained(1), nn.Identity())
    result = analyze({"a": NET, "b": unmoved}, X[1000:1040], Y[1000:1040], threat="linf:0.03")
    known = [set(result[name].under[0].separation.r.known) for name in ("a", "b")]
    common = known[0] & known[1]
    assert known[0] != known[1]
    assert re.search(
        rf"r, to the false class .*{result['a'].under[0].separation.r.over(common).value:.3f}", str(result)
    )
    assert f"r is the mean over {len(common)} of 10 classes" in str(result)


def test_a_layer_can_be_named_and_the_model_is_left_as_found() -> None:
    model = trained().train()
    found = analyze({"net": model}, *QUERIES, layer="0")["net"]
    with torch.no_grad():
        assert np.allclose(found.natural, model[0](QUERIES[0]).numpy(), atol=1e-5)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_further_layers_have_the_numbers_of_their_own_features() -> None:
    found = analyze({"net": NET}, *QUERIES, layers=["0", "logits"])["net"]
    with torch.no_grad():
        known, natural = (NET[0](x).numpy() for x in (GALLERY[0], QUERIES[0]))
    one, y = found.under[0].layers["0"], QUERIES[1].numpy()
    assert np.allclose(one.natural, natural, atol=1e-5)
    knn = KNeighborsClassifier(5, metric="cosine").fit(known, GALLERY[1].numpy())
    assert one.neighbors_clean.accuracy[0].value == knn.score(one.natural, y)
    assert one.neighbors.accuracy[0].value == knn.score(one.features, y)
    expected = separation(one.natural, y, one.features, found.under[0].labels)
    assert one.separation.r_prime.average == expected.r_prime.average
    detector = Detector.fit(torch.from_numpy(known), GALLERY[1])
    scores = [detector.score(torch.tensor(each)).numpy() for each in (one.natural, one.features)]
    wrong = np.concatenate([~found.samples.correct, found.under[0].labels != y])
    assert one.detection.auc.value == pytest.approx(roc_auc_score(wrong, -np.concatenate(scores)), abs=1e-3)
    with torch.no_grad():
        logits = NET[2](torch.tensor(found.under[0].features)).numpy()
    assert np.allclose(found.under[0].layers["logits"].features, logits, atol=1e-4)


def test_a_map_places_adversarial_samples_among_natural_ones(result: holdfast.Analyzed) -> None:
    found = result["net"].projection(perplexity=5, iterations=20)
    assert found.natural.shape == found.placed.shape == (100, 2)


def test_the_page_holds_the_numbers_of_the_table(tmp_path: Path) -> None:
    result = analyze({"<i>a": NET}, *QUERIES)
    text = result.page(tmp_path / "page.html").read_text(encoding="utf-8")
    found = result["<i>a"].under[0]
    assert "After PGD-8 at linf 0.1 the features of" in text
    assert "<i>a" not in text
    for number in (found.separation.r_prime.average, found.detection.auc, found.detection_aware.auc):
        assert f">{number.value:.3f}</span>" in text
        assert f"[{number.low:.3f}, {number.high:.3f}]" in text
    assert f"an AUC of {found.detection.auc.value:.2f} (0.5 is chance)" in text
    assert f"and of {found.detection_aware.auc.value:.2f} if the attack knows it" in text
    assert {"features", "map", "drift", "detection", "landscapes", "heads"} <= set(
        re.findall(r'section id="(.*?)"', text)
    )


class Overflow(nn.Sequential):
    """A network with NaN features and finite logits."""

    def forward(self, x: Tensor) -> Tensor:
        features = self[1](self[0](x)) * torch.nan
        return self[2](features).nan_to_num() + x.sum(1, keepdim=True)  # type: ignore[no-any-return]


class Wide(nn.Sequential):
    """A network with a layer that is too wide for a detector."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 5000), nn.Linear(5000, 4), nn.Linear(4, 10))


ONE = (X[:11], torch.cat([Y[:10], torch.tensor([0])]))  # classes 1 to 9 have one sample


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((NET, *ONE), {}, "class 1 has one sample, so it has no distance within the class"),
        ((NET, *QUERIES), {"gallery": ONE}, "class 1 has one sample but a Gaussian needs at least two"),
        ((NET, *QUERIES), {"gallery": (X[Y < 9][:400], Y[Y < 9][:400])}, "the gallery has no sample of class 9"),
        ((NET, *QUERIES), {"gallery": "digits"}, "gallery is 'digits' but must be training samples"),
        ((NET, *QUERIES), {"k": 401}, r"k is \[401\] but the gallery has 400 samples"),
        ((NET, *QUERIES), {"layer": "conv9"}, "the model has no layer 'conv9'; it has 0, 1, 2"),
        ((NET, *QUERIES), {"layers": ["conv9"]}, "the model has no layer 'conv9'; it has 0, 1, 2"),
        ((NET, *QUERIES), {"layers": ["0", "0"]}, r"layers is \['0', '0'\] and layer None but different layers are"),
        ((NET, *QUERIES), {"layers": "0", "layer": "0"}, "different layers are needed"),
        (
            (Wide(), *QUERIES),
            {"layers": "0"},
            "have 5000 dimensions but a Gaussian per class is fitted to at most 4096",
        ),
        ((Overflow(*trained()), *QUERIES), {}, "features hold NaN or infinite values"),
        ((DecisionTreeClassifier().fit(*GALLERY), *QUERIES), {}, "has no network, so it has no features to analyze"),
        (({}, *QUERIES), {}, "there is no model to evaluate"),
        ((NET, *QUERIES), {"gallery": None}, "gallery is None but must be training samples"),
        ((NET, *QUERIES), {"gallery": (X[:400, :5], Y[:400])}, r"shape \(64,\) and the gallery \(5,\)"),
        ((NET, *QUERIES), {"threat": ["linf:0.1", "l2:1"]}, "2 threats are given"),
        ((NET, *QUERIES), {"threat": "l2:inf"}, "features are followed within a finite eps; give eps"),
        ((NET, *QUERIES), {"steps": 0}, r"steps is \[0\] but an attack needs at least one step"),
        ((NET, *QUERIES), {"k": 2.5}, r"k is \(2.5,\) but it must be a sequence, each a whole number"),
        ((NET, *QUERIES), {"eps": [0.1, "a"]}, r"eps is \(0.1, 'a'\) but it must be a sequence, each a number"),
        ((NET, *QUERIES), {"eps": [0.1, -1]}, r"eps is \[0.1, -1\] but different finite numbers above 0 are needed"),
        ((lambda x: x[:, :10], *QUERIES), {}, "model has no network, so it has no features to analyze"),
    ],
    ids=[
        "class of one",
        "gallery class of one",
        "class missing",
        "name",
        "k",
        "layer",
        "layers",
        "layer twice",
        "layer again",
        "wide layer",
        "nan",
        "no network",
        "none",
        "no gallery",
        "other shape",
        "threats",
        "infinite threat",
        "no steps",
        "half a neighbor",
        "text for eps",
        "negative eps",
        "function",
    ],
)
def test_what_cannot_be_analyzed_is_refused_in_one_sentence(given: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        analyze(*given, **options)
