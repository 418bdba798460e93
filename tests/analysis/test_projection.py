import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from holdfast.analysis.projection import projection


@pytest.fixture(scope="module")
def clusters():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    return (5 * np.eye(3)[y] + rng.normal(size=(90, 3)) / 2).astype(np.float32), y


def test_placed_samples_lie_in_the_cluster_of_their_features(clusters):
    features, y = clusters
    found = projection(features[:60], features[60:], iterations=200)
    near = KNeighborsClassifier(3).fit(found.natural, y[:60]).predict(found.placed)
    assert (near == y[60:]).mean() > 0.9
    assert found.faithful.value > 0.6


def test_equal_seeds_give_equal_maps(clusters):
    features, _ = clusters
    a, b = (projection(features, features[:3], iterations=30, seed=4) for _ in range(2))
    np.testing.assert_array_equal(a.natural, b.natural)
    np.testing.assert_array_equal(a.placed, b.placed)


def test_too_few_samples_are_refused(clusters):
    with pytest.raises(ValueError, match="perplexity is 15 but 10 natural samples allow"):
        projection(clusters[0][:10], clusters[0][:1])


def test_features_of_one_direction_are_refused():
    same = np.outer(np.arange(1, 61), [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="all have one direction"):
        projection(same, same[:1], perplexity=5)


def test_a_map_of_few_samples_is_silent(clusters, capfd, caplog):
    found = projection(clusters[0][:10], clusters[0][:2], perplexity=3, iterations=30)
    assert found.placed.shape == (2, 2)
    assert not caplog.records
    assert not capfd.readouterr().err
