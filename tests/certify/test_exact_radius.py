import numpy as np
import pytest
import torch
from brute_force import constraints, least_distance, least_distance_slsqp, nearest_radius
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import KINDS, assert_examples_are_adversarial, assert_label_is_constant, certifier, problem

from holdfast.certify.neighbors import Neighbors
from holdfast.rng import Rng


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [2, 3, 6])
def test_radius_agrees_with_exhaustive_search(kind, width):
    for seed in range(6):
        points, labels, matrix, x = problem(seed, kind, width=width, classes=2 + seed % 3)
        certify = certifier(points, labels, matrix)
        found = certify(torch.from_numpy(x), rng=Rng(0))
        for row in range(len(x)):
            label = int(found.label[row])
            lower = nearest_radius(points, labels, matrix, x[row], label)
            upper = nearest_radius(points, labels, matrix, x[row], label, strictly=True)
            assert float(found.radius[row]) == pytest.approx(lower, abs=1e-6, rel=1e-6)
            assert float(found.radius[row]) <= lower * (1 + 1e-9) + 1e-12
            assert float(found.upper[row]) == pytest.approx(upper, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_reference_solution_agrees_with_a_general_solver(seed):
    points, labels, matrix, x = problem(seed, "plain")
    label = int(certifier(points, labels, matrix).predict(torch.from_numpy(x[:1])))
    for j in np.flatnonzero(labels != label)[:4]:
        a, b = constraints(points, labels, matrix, x[0], label, j)
        assert least_distance(a, b) == pytest.approx(least_distance_slsqp(a, b, points[j] - x[0]), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_radius_with_a_box_agrees_with_a_general_solver(seed):
    points, labels, matrix, x = problem(seed, "plain", width=3)
    points, x = np.tanh(points) / 2 + 0.5, np.tanh(x) / 2 + 0.5
    boxed, free = certifier(points, labels, matrix, box=(0.0, 1.0)), certifier(points, labels, matrix)
    found, examples = boxed.examine(torch.from_numpy(x))
    assert (found.radius >= free(torch.from_numpy(x), rng=Rng(0)).radius - 1e-9).all()
    assert examples.min() >= 0
    assert examples.max() <= 1
    for row in range(len(x)):
        label = int(found.label[row])
        best = min(
            least_distance_slsqp(
                *constraints(points, labels, matrix, x[row], label, j), points[j] - x[row], (0, 1), x[row]
            )
            for j in np.flatnonzero(labels != label)
        )
        assert float(found.radius[row]) == pytest.approx(best, abs=1e-6)
        assert float(found.upper[row]) == pytest.approx(best, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(1, 8), st.integers(2, 5))
def test_examples_have_another_label_and_points_within_the_radius_do_not(seed, kind, width, classes):
    if kind == "singular" and width < 2:
        return
    points, labels, matrix, x = problem(seed, kind, width=width, classes=classes, n=12)
    certify = certifier(points, labels, matrix)
    x = torch.from_numpy(x)
    found, examples = certify.examine(x)
    assert_examples_are_adversarial(certify, x, found, examples)
    assert_label_is_constant(certify, x, found, seed, draws=200)


def test_bounds_are_tight_for_an_ill_conditioned_metric_in_many_dimensions():
    rng = np.random.default_rng(5)
    points, x = rng.normal(size=(400, 30)), rng.normal(size=(20, 30))
    g = np.diag(10.0 ** np.linspace(0, -3, 30)) @ rng.normal(size=(30, 30))
    found = certifier(points, np.arange(400) % 4, g.T @ g)(torch.from_numpy(x), rng=Rng(0))
    assert ((found.upper - found.radius) / found.upper).max() < 1e-6


def test_radius_is_sound_for_points_that_almost_coincide():
    rng = np.random.default_rng(2)
    for apart in (1e-3, 1e-5, 1e-7):
        points = 1 + np.repeat(rng.normal(size=(6, 4)), 2, 0) + apart * rng.normal(size=(12, 4))
        labels, x = np.arange(12) % 2, points[:1] + 0.1 * rng.normal(size=(1, 4))
        certify = certifier(points, labels, np.eye(4))
        found = certify(torch.from_numpy(x), rng=Rng(0))
        truth = nearest_radius(points, labels, np.eye(4), x[0], int(found.label))
        assert float(found.radius) <= truth * (1 + 1e-9) + 1e-12
        assert float(found.radius) == pytest.approx(truth, abs=1e-6)
        voting = certifier(points, labels, np.eye(4), k=3)(torch.from_numpy(x), rng=Rng(0))
        assert float(voting.radius) <= float(voting.upper)


def test_an_input_on_points_of_both_labels_has_radius_zero():
    points = np.array([[0.0, 0], [0, 0], [1, 0], [0, 1]])
    found = certifier(points, np.array([0, 1, 0, 1]), np.eye(2))(torch.zeros(1, 2, dtype=torch.float64), rng=Rng(0))
    assert float(found.radius) == 0
    assert float(found.upper) == pytest.approx(0.5, abs=1e-6)  # half way to a point of the other label


def test_there_is_no_example_if_no_perturbation_separates_the_labels():
    points = np.array([[0.0, 0], [0, 1], [2, 0], [2, 1]])  # the metric depends on the first coordinate only
    matrix = np.diag([1.0, 0.0])
    found = certifier(points, np.array([0, 1, 0, 1]), matrix)(torch.tensor([[0.0, 0.0]]).double(), rng=Rng(0))
    assert float(found.radius) == 0
    assert float(found.upper) == np.inf


def test_images_keep_their_shape_and_batching_does_not_change_results():
    points, labels, matrix, x = problem(3, "plain", n=30, width=12, queries=9)
    certify = certifier(points, labels, matrix)
    pictures = certifier(points.reshape(30, 1, 3, 4), labels, matrix)
    whole, examples = pictures.examine(torch.from_numpy(x.reshape(9, 1, 3, 4)))
    assert examples.shape == (9, 1, 3, 4)
    parts = torch.cat([certify(torch.from_numpy(part), rng=Rng(1)).radius for part in (x[:2], x[2:])])
    torch.testing.assert_close(parts, whole.radius, rtol=1e-9, atol=0)


def test_no_inputs_give_an_empty_certificate():
    points, labels, matrix, _ = problem(0, "plain")
    for k in (1, 3):
        assert len(certifier(points, labels, matrix, k=k)(torch.zeros(0, 3).double(), rng=Rng(0)).radius) == 0


@pytest.mark.parametrize("box", [None, (-2.0, 1.0)])
@pytest.mark.parametrize("aside", [1e-12, 2e-12, 1e-9])
def test_radius_is_sound_for_nearly_opposite_constraints(aside, box):
    """The cell of a point between two close ones is a thin wedge, which rounding must not mistake for an empty set."""
    points = torch.tensor([[0, 0], [aside, 1e-6], [0, 2e-6]], dtype=torch.float64)
    certify = Neighbors(points=points, labels=torch.tensor([0, 1, 0]), box=box)
    x = torch.tensor([[-1.5, 1e-6]], dtype=torch.float64)
    found, x_adv = certify.examine(x)
    reached = float((points[1] - x[0]).norm())
    assert found.radius.item() <= reached
    assert found.upper.item() <= reached * (1 + 1e-9)
    assert certify.predict(x_adv).item() == 1


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("size", [2.0**-1060, 1e-300, 1e-170, 1e300])
def test_radius_does_not_depend_on_the_scale_of_the_matrix(size, k):
    """Without rescaling, fourth powers would underflow or overflow."""
    points, labels, _, x = problem(1, "plain")
    here, there = (certifier(points, labels, s * np.eye(3), k=k)(torch.from_numpy(x), rng=Rng(0)) for s in (1, size))
    torch.testing.assert_close(there.radius, here.radius)
    torch.testing.assert_close(there.upper, here.upper)


def test_numpy_integers_are_accepted():
    points, labels, matrix, x = problem(1, "plain")
    found = certifier(points, labels, matrix, k=np.int64(3), near=np.int64(4))(torch.from_numpy(x), rng=Rng(0))
    known = certifier(points, labels, matrix, k=3, near=4)(torch.from_numpy(x), rng=Rng(0))
    assert torch.equal(found.radius, known.radius)
