import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from holdfast.analysis.detection import detection, load_detector, rejection, save_detector
from holdfast.models.detector import Detector
from holdfast.records import snapshot


def example(n=300, seed=0):
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.3
    return np.round(rng.normal(size=n) - wrong, 1), wrong  # rounded: many scores are equal


def test_curve_and_area_are_those_of_scikit_learn():
    scores, wrong = example()
    found = detection(scores, wrong)
    fpr, tpr, _ = roc_curve(wrong, -scores, drop_intermediate=False)
    np.testing.assert_allclose(found.fpr, fpr)
    np.testing.assert_allclose(found.tpr, tpr)
    assert found.auc.value == pytest.approx(roc_auc_score(wrong, -scores))
    for rate, estimate in found.at.items():
        assert estimate.value == pytest.approx(tpr[fpr <= rate].max())


def test_draws_of_the_area_are_those_of_drawn_images():
    scores, wrong = example(60)
    image = np.arange(60) // 2
    found = detection(scores, wrong, image, draws=5, seed=1)
    rng = np.random.default_rng(1)
    drawn = [[i for pick in rng.integers(30, size=30) for i in (2 * pick, 2 * pick + 1)] for _ in range(5)]
    areas = [roc_auc_score(wrong[ids], -scores[ids]) for ids in drawn]
    assert found.auc.low == pytest.approx(np.quantile(areas, 0.025))
    assert found.auc.high == pytest.approx(np.quantile(areas, 0.975))


def test_rejecting_half_leaves_the_accuracy_of_the_others():
    scores, wrong = np.random.default_rng(0).permutation(10).astype(float), np.arange(10) < 4
    found = detection(scores, wrong)
    half = list(found.accepted).index(0.5)
    assert found.accuracy[half] == np.mean([not w for s, w in zip(scores, wrong, strict=True) if s >= 5])
    assert found.accuracy[0] == 0.6


def test_without_misclassified_samples_the_area_is_unknown():
    found = detection([0.1, 0.2], [False, False])
    assert np.isnan(found.auc.value)
    assert np.isnan(found.at[0.01].value)


def test_a_long_curve_is_thinned_with_its_ends():
    scores = np.random.default_rng(0).normal(size=3000)
    found = detection(scores, scores < 0, draws=1)
    assert len(found.fpr) == 400
    assert (found.tpr[0], found.tpr[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("scores", "wrong", "words"),
    [([np.nan], [True], "NaN"), ([1.0], [1], "one boolean"), ([], np.zeros(0, bool), "scores hold")],
)
def test_bad_input(scores, wrong, words):
    with pytest.raises(ValueError, match=words):
        detection(scores, wrong)


def test_a_saved_detector_scores_the_same(tmp_path):
    features, y = torch.randn(40, 3), torch.arange(40) % 2
    detector = Detector.fit(features, y, layer="encoder").calibrate(features, 0.1)
    save_detector(detector, tmp_path / "detector.safetensors")
    loaded = load_detector(tmp_path / "detector.safetensors")
    assert torch.equal(loaded.score(features), detector.score(features))
    assert loaded.threshold == detector.threshold
    assert loaded.layer == "encoder"


def test_another_file_is_no_detector(tmp_path):
    snapshot.write(tmp_path / "a.safetensors", {"w": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="holds no detector"):
        load_detector(tmp_path / "a.safetensors")


def test_rejection_counts_abstentions_as_errors_and_as_successes():
    rng = np.random.default_rng(0)
    scores, wrong = rng.normal(size=(2, 50)), rng.random((2, 50)) < 0.4
    found = rejection(0.1, scores[0], wrong[0], scores[1], wrong[1])
    natural = [not w and s >= 0.1 for s, w in zip(scores[0], wrong[0], strict=True)]
    attacked = [not w or s < 0.1 for s, w in zip(scores[1], wrong[1], strict=True)]
    assert found.natural.successes == sum(natural)
    assert found.adversarial.successes == sum(attacked)
    assert found.rejected.successes == sum(s < 0.1 for s in scores[0])
    assert found.natural.n == found.adversarial.n == 50


def test_the_difference_of_two_detectors_is_paired_by_image():
    rng = np.random.default_rng(0)
    wrong, image = rng.random(60) < 0.4, np.tile(np.arange(30), 2)
    scores = rng.normal(size=(2, 60)) - wrong
    a, b = (detection(one, wrong, image) for one in scores)
    found = a.minus(b)
    assert found.value == pytest.approx(a.auc.value - b.auc.value)
    assert found.low < found.value < found.high
    assert (a.minus(a).low, a.minus(a).high) == (0, 0)
    assert np.isnan(a.minus(detection(scores[0][:40], wrong[:40])).value)
