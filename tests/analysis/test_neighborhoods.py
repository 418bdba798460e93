import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from holdfast.analysis.neighborhoods import neighborhoods


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_accuracy_and_lists_are_those_of_scikit_learn(distance):
    rng = np.random.default_rng(0)
    gallery, queries = rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=(50, 8)).astype(np.float32)
    classes, y = rng.integers(3, size=300), rng.integers(3, size=50)
    found = neighborhoods(queries, y, gallery, classes, k=[1, 7, 50], distance=distance)
    for k in (1, 7, 50):
        theirs = KNeighborsClassifier(k, metric=distance, algorithm="brute").fit(gallery, classes)
        assert found.at(k).value == pytest.approx((theirs.predict(queries) == y).mean())
    np.testing.assert_array_equal(found.nearest, theirs.kneighbors(queries, 10, return_distance=False))
    np.testing.assert_array_equal(found.votes[:, -1], theirs.predict(queries))


@pytest.mark.parametrize(("k", "words"), [([], "k is"), ([0], "k is"), ([3], "the gallery has 2 samples")])
def test_bad_numbers_of_neighbors(k, words):
    with pytest.raises(ValueError, match=words):
        neighborhoods([[1.0]], [0], [[1.0], [2.0]], [0, 1], k=k)


def test_features_of_two_layers_are_refused():
    with pytest.raises(ValueError, match="same layer"):
        neighborhoods([[1.0]], [0], [[1.0, 2.0]], [0], k=[1])
