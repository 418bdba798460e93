"""Every learner passes scikit-learn's estimator checks and explains invalid input in one sentence."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

from holdfast.learners import ARML, ITML, LMNN, NCA, Euclidean, MahalanobisKNN

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK: dict[str, Any] = {
    "euclidean": Euclidean(),
    "arml": ARML(max_iter=20, learning_rate=0.04, random_state=0, device="cpu"),
    "lmnn": LMNN(max_iter=20, device="cpu"),
    "itml": ITML(max_iter=20, n_constraints=50, random_state=0, device="cpu"),
    "nca": NCA(max_iter=10),
}
learner = pytest.mark.parametrize("learner", QUICK.values(), ids=QUICK)
supervised = pytest.mark.parametrize("learner", list(QUICK.values())[1:], ids=list(QUICK)[1:])


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Two features separate the three classes; three noisy ones have a larger variance."""
    draw = np.random.RandomState(0)
    y = np.repeat(["a", "b", "c"], 30)
    x = draw.normal(size=(90, 5)) * [0.3, 0.3, 3, 3, 3]
    x[:, 0] += 2 * (y == "b")
    x[:, 1] += 2 * (y == "c")
    return x, y


@pytest.mark.parametrize("estimator", [*QUICK.values(), MahalanobisKNN(device="cpu")], ids=[*QUICK, "knn"])
def test_estimators_pass_the_checks_of_scikit_learn(estimator: Any) -> None:
    failed = [case for case in check_estimator(estimator, on_fail=None, on_skip=None) if case["status"] == "failed"]
    assert [(case["check_name"], str(case["exception"])) for case in failed] == []


@learner
def test_transform_metric_and_neighbors_of_scikit_learn_agree(learner: Any, data: Any) -> None:
    x, y = data
    fitted = clone(learner).fit(x, y)
    z, distance = fitted.transform(x), fitted.get_metric()
    m = fitted.components_.T @ fitted.components_
    for u, v in ((0, 1), (5, 70)):
        assert distance(x[u], x[v]) == pytest.approx(np.linalg.norm(z[u] - z[v]))
        assert distance(x[u], x[v]) ** 2 == pytest.approx((x[u] - x[v]) @ m @ (x[u] - x[v]))
    theirs = KNeighborsClassifier(1, metric=distance, algorithm="brute").fit(x[::2], y[::2]).predict(x[1::2])
    ours = MahalanobisKNN(FrozenEstimator(fitted), device="cpu").fit(x[::2], y[::2]).predict(x[1::2])
    assert (ours == theirs).all()


@supervised
def test_learned_metrics_improve_the_accuracy(learner: Any, data: Any) -> None:
    x, y = data
    plain = MahalanobisKNN(device="cpu").fit(x[::2], y[::2]).score(x[1::2], y[1::2])
    learned = MahalanobisKNN(learner, device="cpu").fit(x[::2], y[::2]).score(x[1::2], y[1::2])
    assert learned > plain + 0.1


@learner
def test_pickling_is_exact_and_cloning_keeps_the_parameters(learner: Any, data: Any) -> None:
    fitted = clone(learner).fit(*data)
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.transform(data[0]) == fitted.transform(data[0])).all()
    assert pickle.loads(pickle.dumps(fitted.get_metric()))(data[0][0], data[0][1]) > 0
    assert clone(fitted).get_params() == learner.get_params()
    assert not hasattr(clone(fitted), "components_")


@supervised
def test_the_same_seed_gives_the_same_metric(learner: Any, data: Any) -> None:
    first, second = clone(learner).fit(*data), clone(learner).fit(*data)
    assert (first.components_ == second.components_).all()


@supervised
def test_learners_work_in_pipelines_and_grid_search(learner: Any, data: Any) -> None:
    pipe = make_pipeline(MinMaxScaler(), MahalanobisKNN(learner, device="cpu"))
    grid = {"mahalanobisknn__n_neighbors": [1, 3], "mahalanobisknn__metric__max_iter": [5, 10]}
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(*data)
    assert search.best_score_ > 0.5
    assert list(clone(learner).fit(*data).get_feature_names_out()) == [
        f"{type(learner).__name__.lower()}{i}" for i in range(5)
    ]


@supervised
def test_learners_warn_when_they_do_not_converge(learner: Any, data: Any) -> None:
    short = clone(learner).set_params(max_iter=1, tol=1e-12)
    with pytest.warns(ConvergenceWarning, match="after 1 iterations; raise max_iter or tol"):
        short.fit(*data)
    assert short.n_iter_ == 1


@pytest.mark.parametrize("name", ["arml", "lmnn", "itml"])
def test_progress_is_called_with_finite_values_until_the_last_iteration(name: str, data: Any) -> None:
    calls: list[tuple[int, float]] = []
    learner = clone(QUICK[name]).set_params(progress=lambda *arguments: calls.append(arguments), max_iter=6)
    learner.fit(*data)
    assert calls[-1][0] == learner.n_iter_
    assert all(np.isfinite(value) for _, value in calls)


def with_nan(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)


@pytest.mark.parametrize("estimator", [*QUICK.values(), MahalanobisKNN()], ids=[*QUICK, "knn"])
def test_nan_is_refused(estimator: Any, data: Any) -> None:
    fresh = clone(estimator)
    with pytest.raises(ValueError, match=r"^X contains NaN or inf; remove or fill in such values first$"):
        fresh.fit(with_nan(data[0]), data[1])


@pytest.mark.parametrize("estimator", [*list(QUICK.values())[1:], MahalanobisKNN()], ids=[*list(QUICK)[1:], "knn"])
def test_a_single_class_is_refused(estimator: Any, data: Any) -> None:
    with pytest.raises(ValueError, match=r"^y has one class, a, but at least two are needed to tell points apart$"):
        clone(estimator).fit(data[0][:30], data[1][:30])


@pytest.mark.parametrize("name", ["arml", "lmnn", "itml"])
def test_classes_of_one_point_each_are_refused(name: str, data: Any) -> None:
    with pytest.raises(ValueError, match=r"^every class has one point, but .*; add points$"):
        clone(QUICK[name]).fit(data[0][::30], data[1][::30])


@pytest.mark.parametrize("name", ["arml", "lmnn", "itml"])
def test_a_class_of_one_point_among_others_is_allowed(name: str, data: Any) -> None:
    x, y = data
    fitted = clone(QUICK[name]).fit(x[:61], y[:61])
    assert np.isfinite(fitted.components_).all()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (MahalanobisKNN(n_neighbors=2), "n_neighbors is 2 but must be an odd number, such as 1 or 11"),
        *(
            (MahalanobisKNN(n_neighbors=many), f"n_neighbors is {many!r} but must be a whole number, 1 or more")
            for many in (-1, 1.5, 1.0, "3", None, True)
        ),
        (MahalanobisKNN(n_neighbors=91), "X has 90 points but n_neighbors = 91 needs at least 92 points"),
        (
            MahalanobisKNN(np.diag([1.0, 1, 1, 1, -1])),
            "the matrix has the eigenvalue -1 but a metric must be positive semi-definite; give GᵀG of some G",
        ),
        (
            MahalanobisKNN(np.eye(5) + np.eye(5, k=1)),
            "the matrix is not symmetric but a metric needs M = Mᵀ; give GᵀG of some G",
        ),
        (MahalanobisKNN(np.eye(4)), r"the matrix has shape \(4, 4\) but X has 5 features"),
        (MahalanobisKNN(np.ones((4, 5))), r"the matrix has shape \(4, 5\) but a metric needs a square one"),
        (
            MahalanobisKNN(np.full((5, 5), np.nan)),
            "the matrix holds NaN or infinite values; give a positive semi-definite matrix",
        ),
        (
            MahalanobisKNN(1j * np.eye(5)),
            "the matrix holds complex numbers but a metric needs real ones; give GᵀG of some real G",
        ),
        (MahalanobisKNN(1e-200 * np.eye(5)), "the matrix reaches 1e-200; scale it to a size near 1, .*"),
        (MahalanobisKNN("euclid"), "metric is 'euclid' but must be a learner such as .*, or None for Euclidean"),
        (MahalanobisKNN([[1, 0], [0]]), r"metric is \[\[1, 0\], \[0\]\] but must be a learner such as .*"),
        (MahalanobisKNN(ARML), "metric is <class .*ARML'> but must be a learner such as .*"),
        (MahalanobisKNN(MinMaxScaler()), "metric is MinMaxScaler, which learns no components_, but must be .*"),
        (ARML(loss="square"), "loss is 'square' but must be one of negative, hinge, exponential, logistic or .*"),
        (ARML(loss=["hinge"]), "loss is .'hinge'. but must be one of negative, hinge, exponential, logistic or .*"),
        (ARML(max_iter=0), "max_iter is 0 but must be a whole number, 1 or more"),
        (ARML(refresh=1.5), "refresh is 1.5 but must be a whole number, 1 or more"),
        (ARML(learning_rate="fast"), "learning_rate is 'fast' but must be a positive number"),
        (ARML(tol=float("nan")), "tol is nan but must be a number"),
        (LMNN(pull=1.0), "pull is 1.0 but must lie between 0 and 1"),
        (LMNN(pull="1/2"), "pull is '1/2' but must lie between 0 and 1"),
        (LMNN(n_neighbors=0), "n_neighbors is 0 but must be a whole number, 1 or more"),
        (LMNN(tol=None), "tol is None but must be a number"),
        (ITML(gamma=-1.0), "gamma is -1.0 but must be a positive number"),
        (ITML(n_constraints=0), "n_constraints is 0 but must be a whole number, 1 or more"),
        (ITML(bounds=(2.0, 1.0)), r"bounds are \(2.0, 1.0\) but must be two ascending squared distances"),
        (ITML(bounds=(1.0, 2.0, 3.0)), r"bounds are .* but must be two ascending squared distances"),
        (ITML(bounds=1.0), "bounds are 1.0 but must be two ascending squared distances"),
        (ITML(tol="no"), "tol is 'no' but must be a number"),
        (NCA(max_iter=-3), "max_iter is -3 but must be a whole number, 1 or more"),
        (NCA(tol="no"), "tol is 'no' but must be a number"),
    ],
)
def test_invalid_parameters_are_refused(estimator: Any, message: str, data: Any) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        estimator.fit(*data)


@pytest.mark.parametrize("estimator", [ARML(), LMNN(), ITML(), MahalanobisKNN()])
@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta", 1.5])
def test_unusable_devices_are_refused(estimator: Any, device: Any, data: Any) -> None:
    with pytest.raises(ValueError, match=f"^device is {device!r} but no such device with float64 can be used here; .*"):
        clone(estimator).set_params(device=device).fit(*data)


def test_a_metric_learned_on_other_features_is_refused(data: Any) -> None:
    x, y = data
    with pytest.raises(ValueError, match=r"^ARML was fitted with 2 features but X has 5$"):
        MahalanobisKNN(FrozenEstimator(clone(QUICK["arml"]).fit(x[:, :2], y)), device="cpu").fit(x, y)


def test_numpy_numbers_are_accepted_as_parameters(data: Any) -> None:
    knn = MahalanobisKNN(ITML(max_iter=np.int32(2), gamma=np.float32(1)), n_neighbors=np.int64(3)).fit(*data)
    assert knn.predict(data[0]).shape == (90,)


def test_arml_accepts_a_custom_loss(data: Any) -> None:
    cubes = ARML(loss=partial(cubed, scale=2.0), max_iter=5, tol=None, random_state=0, device="cpu").fit(*data)
    assert cubes.n_iter_ == 5
    assert not np.allclose(cubes.components_, np.eye(5))


def cubed(radius: Any, scale: float) -> Any:
    return -scale * radius**3


def test_ties_go_to_the_first_point_and_the_first_class() -> None:
    x = np.array([[0.0], [2.0], [2.0], [4.0], [9.0]])
    one = MahalanobisKNN(device="cpu").fit(x, ["q", "p", "q", "q", "p"])
    assert one.predict([[1.0], [2.0], [3.0]]).tolist() == ["q", "p", "p"]
    three = MahalanobisKNN(n_neighbors=3, device="cpu").fit(x, ["q", "p", "r", "q", "r"])
    assert three.predict([[1.5]]).tolist() == ["p"]  # one vote each: the first of the three classes


def test_a_singular_matrix_ignores_its_null_space() -> None:
    x, y = np.array([[0.0, 5.0], [1.0, -5.0], [0.1, 9.0]]), ["a", "b", "a"]
    knn = MahalanobisKNN(np.diag([4.0, 0.0]), device="cpu").fit(x, y)
    assert knn.predict([[0.9, 5.0], [0.2, -5.0]]).tolist() == ["b", "a"]
    assert knn.get_metric()([0, 0], [1, 100]) == pytest.approx(2)


@pytest.mark.parametrize("n_neighbors", [1, 3])
@pytest.mark.parametrize("metric", [None, np.diag([4.0, 1, 0.5, 0, 0]), QUICK["arml"]], ids=["none", "matrix", "arml"])
def test_certify_agrees_with_predict_and_no_point_within_the_radius_has_another_class(
    metric: Any, n_neighbors: int, data: Any
) -> None:
    x, y = data
    knn = MahalanobisKNN(metric, n_neighbors=n_neighbors, device="cpu").fit(x[::2], y[::2])
    found = knn.certify(x[1::2])
    predicted = knn.predict(x[1::2])
    assert (knn.classes_[found.label.numpy()] == predicted).all()
    assert (found.radius <= found.upper).all()
    assert found.radius.max() > 0
    directions = np.random.default_rng(0).normal(size=(20, *x[1::2].shape))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    for direction in directions:
        moved = x[1::2] + 0.999 * found.radius.numpy()[:, None] * direction
        assert (knn.predict(moved) == predicted)[found.radius.numpy() > 1e-9].all()


def test_certify_needs_a_fitted_estimator_and_finite_points_of_the_same_width(data: Any) -> None:
    x, y = data
    with pytest.raises(NotFittedError):
        MahalanobisKNN().certify(x)
    knn = MahalanobisKNN(device="cpu").fit(x, y)
    with pytest.raises(ValueError, match="X contains NaN or inf"):
        knn.certify(with_nan(x))
    with pytest.raises(ValueError, match="features"):
        knn.certify(x[:, :3])


@pytest.mark.parametrize("name", ["arml", "lmnn", "itml"])
def test_equal_points_leave_the_euclidean_metric(name: str) -> None:
    fitted = clone(QUICK[name]).fit(np.ones((12, 3)), np.arange(12) % 2)
    np.testing.assert_allclose(fitted.components_.T @ fitted.components_, np.eye(3))


@pytest.mark.parametrize("name", ["arml", "lmnn", "itml"])
def test_metrics_do_not_depend_on_translations(name: str, data: Any) -> None:
    here, far = (clone(QUICK[name]).fit(data[0] + offset, data[1]).components_ for offset in (0, 2.0**20))
    np.testing.assert_allclose(here, far, atol=1e-3)


@supervised
def test_points_whose_squares_overflow_are_refused(learner: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match=r"^points reach .*, whose squares overflow; scale them first"):
        clone(learner).fit(1e30 * x, y)


@pytest.mark.parametrize("estimator", [*list(QUICK.values())[1:], MahalanobisKNN()], ids=[*list(QUICK)[1:], "knn"])
def test_points_whose_squares_underflow_are_refused(estimator: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    for scale in (1e-20, 1e-200):
        with pytest.raises(ValueError, match=r"^points span .*, whose square underflows; scale them first"):
            clone(estimator).fit(scale * x, y)


def test_a_diverged_metric_is_refused() -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match="learning_rate 1e\\+30 is too large"):
        ARML(learning_rate=1e30, max_iter=5, tol=None, random_state=0).fit(x, y)
