"""Projections, steepest steps and samples of every norm: properties, and comparisons with slow reference solutions."""

from itertools import combinations
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize
from torch import Tensor

from holdfast.contracts import Norm
from holdfast.geometry import L0, L1, L2, NORMS, LInf, Threat
from holdfast.rng import Rng

every_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
convex_norm = pytest.mark.parametrize("norm", [LInf(), L2(), L1()], ids=lambda norm: norm.name)
SIGNIFICANCE = 1e-3  # smallest p-value accepted; seeds are fixed, so the tests are not flaky
TYPICAL = {"linf": (8 / 255, 0.3), "l2": (0.5, 3.0), "l1": (1.0, 12.0), "l0": (1.0, 10.0)}


Problem = tuple[Tensor, Tensor, float, float, float]


@st.composite
def problems(draw: st.DrawFn, *dtypes: torch.dtype) -> Problem:
    """A point to project, the center, eps and box; centers often lie on the faces of the box."""
    shape = draw(st.sampled_from([(0, 3), (1, 1), (1, 5), (8, 6), (8, 3, 2, 2), (8, 1, 4, 4), (0, 3, 2, 2), (4, 3, 4)]))
    low, high = draw(st.sampled_from([(0.0, 1.0), (-inf, inf), (-2.0, inf), (-1.0, 0.5)]))
    eps = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.5, 4.0, inf]))
    scale = draw(st.sampled_from([0.0, 0.01, 0.3, 2.0, 50.0]))
    rng = Rng(draw(st.integers(0, 2**32)))
    like = torch.empty(shape, dtype=draw(st.sampled_from(dtypes)))
    x = rng.fork("x").normal(like).clamp(low, high)
    return x + scale * rng.fork("z").normal(like), x, eps, low, high


def bisected(v: np.ndarray, low: np.ndarray, high: np.ndarray, eps: float, norm: Norm) -> np.ndarray:
    """Project each row by bisection on the dual variable, in float64."""

    def point(dual: np.ndarray) -> np.ndarray:
        shrunk = v / (1 + dual) if isinstance(norm, L2) else np.sign(v) * np.maximum(np.abs(v) - dual, 0)
        return np.clip(shrunk, low, high)

    def long(dual: np.ndarray) -> np.ndarray:
        return np.linalg.norm(point(dual), 2 if isinstance(norm, L2) else 1, axis=1, keepdims=True) > eps

    left, right = np.zeros((len(v), 1)), np.full((len(v), 1), 1e15)
    free = ~long(left)
    for _ in range(150):
        middle = (left + right) / 2
        left, right = np.where(long(middle), middle, left), np.where(long(middle), right, middle)
    return np.where(free, point(np.zeros_like(left)), point(right))


def searched(v: np.ndarray, low: np.ndarray, high: np.ndarray, eps: float) -> np.ndarray:
    """Compute the L0 projection of (channels, pixels) by exhaustive search over sets of pixels."""
    clipped = np.clip(v, low, high)
    candidates = []
    for pixels in combinations(range(v.shape[1]), int(min(eps, v.shape[1]))):
        p = np.zeros_like(v)
        p[:, list(pixels)] = clipped[:, list(pixels)]
        candidates.append(p)
    return min(candidates, key=lambda p: float(((p - v) ** 2).sum()))


def slow_projection(norm: Norm, d: Tensor, eps: float, low: Tensor, high: Tensor) -> Tensor:
    if isinstance(norm, LInf):
        return torch.from_numpy(np.clip(np.clip(d.numpy(), -eps, eps), low.numpy(), high.numpy()))
    if isinstance(norm, L0):
        channels = d.shape[1] if d.ndim == 4 else 1
        v, lo, hi = (part.reshape(len(d), channels, d[0].numel() // channels).numpy() for part in (d, low, high))
        return torch.from_numpy(np.stack([searched(v[i], lo[i], hi[i], eps) for i in range(len(d))])).reshape(d.shape)
    flat = (part.flatten(1).numpy() for part in (d, low, high))
    return torch.from_numpy(bisected(*flat, eps, norm)).reshape(d.shape)


@every_norm
@given(problem=problems(torch.float64, torch.float32))
def test_projection_is_inside_and_idempotent(norm: Norm, problem: Problem) -> None:
    z, x, eps, low, high = problem
    threat = Threat(norm, eps, low, high)
    p = threat.project(z, x)
    assert p.shape == x.shape
    assert p.dtype == x.dtype
    assert threat.contains(p, x).all()
    torch.testing.assert_close(threat.project(p, x), p)


@every_norm
@given(problem=problems(torch.float64))
def test_projection_is_the_nearest_point(norm: Norm, problem: Problem) -> None:
    z, x, eps, low, high = problem
    assume(len(x))
    d = z - x
    if isinstance(norm, L0) and d[:1].numel() > 12:
        d, x = d[:, :, :2, :3], x[:, :, :2, :3]
    found = norm.project(d, x.new_full((len(x),), eps), low - x, high - x)
    slow = slow_projection(norm, d, eps, low - x, high - x)
    if isinstance(norm, L0):  # equally near sets of pixels may differ, the distance may not
        found, slow = ((p - d).flatten(1).norm(dim=1) for p in (found, slow))
    torch.testing.assert_close(found, slow, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm", [L2(), L1()], ids=lambda norm: norm.name)
@pytest.mark.parametrize("seed", range(4))
def test_projection_agrees_with_a_general_solver(norm: Norm, seed: int) -> None:
    """SLSQP solves for the magnitudes, with the signs of v fixed."""
    x = Rng(seed).fork("x").uniform(torch.empty(1, 5, dtype=torch.float64))
    d = Rng(seed).fork("d").normal(x)
    v, eps, sign = d[0].numpy(), 0.6, np.sign(d[0].numpy())
    room = np.where(sign > 0, 1 - x[0].numpy(), x[0].numpy())
    inside = {"type": "ineq", "fun": lambda m: eps - (m.sum() if isinstance(norm, L1) else np.linalg.norm(m + 1e-15))}
    solved = minimize(
        lambda m: ((m - np.abs(v)) ** 2).sum(),
        np.minimum(room, eps / 5),
        bounds=[(0, r) for r in room],
        constraints=inside,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    found = norm.project(d, d.new_tensor([eps]), -x, 1 - x)
    np.testing.assert_allclose(found[0].numpy(), sign * solved.x, atol=1e-6)


@convex_norm
@given(problem=problems(torch.float64), seed=st.integers(0, 2**32))
def test_no_feasible_direction_comes_nearer(norm: Norm, problem: Problem, seed: int) -> None:
    """The nearest point p of a convex set is the one with <z - p, q - p> <= 0 for all q of the set."""
    z, x, eps, low, high = problem
    eps = min(eps, 10.0)
    threat = Threat(norm, eps, low, high)
    p, corner = threat.project(z, x), threat.project(x + 100 * (z - x), x)
    for q in (threat.sample(x, Rng(seed)), corner, x):
        product = ((z - p) * (q - p)).flatten(1).sum(1)
        assert (product <= 1e-9 * (1 + (z - p).flatten(1).norm(dim=1))).all()


@every_norm
@given(problem=problems(torch.float64, torch.float32))
def test_projection_does_not_move_points_inside(norm: Norm, problem: Problem) -> None:
    z, x, eps, low, high = problem
    radius = x.new_full((len(x),), eps)
    d = norm.project(z - x, radius, low - x, high - x)
    d = d if isinstance(norm, L0) else 0.99 * d
    assert torch.equal(norm.project(d, radius, low - x, high - x), d)
    ulp = torch.finfo(x.dtype).eps * torch.maximum(x.abs(), d.abs())
    assert ((Threat(norm, eps, low, high).project(x + d, x) - (x + d)).abs() <= ulp).all()


@pytest.mark.parametrize("norm", [L2(), L1()], ids=lambda norm: norm.name)
def test_projection_when_the_box_clips_one_coordinate_after_another(norm: Norm) -> None:
    d = torch.ones(1, 60, dtype=torch.float64)
    high = 0.7 ** torch.arange(60.0, dtype=torch.float64)[None].flip(1)
    for eps in (1e-9, 1e-3, 0.5, 1.0, 2.0):
        found = norm.project(d, d.new_tensor([eps]), -high, high)
        slow = slow_projection(norm, d, eps, -high, high)
        torch.testing.assert_close(found, slow, atol=1e-12, rtol=1e-9)


@every_norm
def test_radius_is_per_sample(norm: Norm, rng: Rng) -> None:
    d, radius = rng.normal(torch.empty(4, 6, dtype=torch.float64)), torch.tensor([0.0, 1.0, 2.0, inf])
    high = torch.full_like(d, 0.8)
    together = norm.project(d, radius, -high, high)
    alone = [norm.project(*(part[i : i + 1] for part in (d, radius, -high, high))) for i in range(4)]
    assert torch.equal(together, torch.cat(alone))


@every_norm
@pytest.mark.parametrize("stray", [0.05, 1.0, 1e3])
def test_float32_images_stay_contained(norm: Norm, stray: float, rng: Rng) -> None:
    x = (rng.fork("x").uniform(torch.empty(32, 3, 32, 32)) * 1.2 - 0.1).clamp(0, 1)
    x[::2] = (x[::2] * 255).round() / 255
    for eps in TYPICAL[norm.name]:
        threat = Threat(norm, eps)
        for z in (x + stray * rng.normal(x), x + eps * norm.steepest(rng.normal(x)), threat.sample(x, rng)):
            p = threat.project(z, x)
            assert threat.contains(p, x).all()
            assert threat.contains(threat.project(p, x), x).all()


@every_norm
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_float32_tables_with_large_numbers_stay_contained(norm: Norm, size: float, rng: Rng) -> None:
    """Where |x| is large, the rounding error of x + d alone exceeds the tolerance."""
    x = size * rng.fork("x").normal(torch.empty(64, 30))
    for eps in TYPICAL[norm.name]:
        threat = Threat(norm, eps, -inf, inf)
        assert threat.contains(threat.project(x + rng.normal(x), x), x).all()
        assert threat.contains(threat.sample(x, rng), x).all()


@convex_norm
@given(
    size=st.floats(-30, 38.4).map(lambda exponent: 10**exponent),
    eps=st.sampled_from([1e-3, 0.3, 2.5, 1e6, inf]),
    box=st.sampled_from([(0.0, 1.0), (-2.0, inf), (-inf, inf), (-3e38, 3e38)]),
    seed=st.integers(0, 2**32),
)
@example(size=3e38, eps=inf, box=(-inf, inf), seed=0)
@example(size=3e38, eps=2.5, box=(0.0, 1.0), seed=0)
def test_float32_perturbations_of_every_magnitude_are_projected_as_in_float64(
    norm: Norm, size: float, eps: float, box: tuple[float, float], seed: int
) -> None:
    """The squares of numbers above 1e19 and the sums of numbers near 3e38 overflow in float32."""
    rng, threat = Rng(seed), Threat(norm, eps, *box)
    x = rng.fork("x").uniform(torch.empty(8, 6))
    z = x + (size * rng.fork("z").normal(x).double()).clamp(-3.4e38, 3.4e38).float()
    found, exact = threat.project(z, x), threat.project(z.double(), x.double())
    assert threat.contains(found, x).all()
    if norm.name == "l1" and size > 1e3 * eps:  # all but the largest coordinates cancel
        return
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4 * min(eps, size) + 1e-7)


half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])


@st.composite
def half_problems(draw: st.DrawFn, dtype: torch.dtype) -> Problem:
    """A point to project, the center, eps and box; values reach the largest and the smallest of the half type."""
    info = torch.finfo(dtype)
    shape = draw(st.sampled_from([(0, 3), (1, 1), (8, 6), (8, 3, 2, 2), (4, 3, 4), (2, 200)]))
    low, high = draw(st.sampled_from([(0.0, 1.0), (0.1, 0.3), (-inf, inf), (-2.7, inf), (-info.max, 3e4)]))
    eps = draw(st.sampled_from([0.0, info.tiny / 3, 8 / 255, 0.1, 0.3, 2.7, 30.0, 1e5, info.max, inf]))
    scales = st.sampled_from([0.0, info.tiny, 1e-3, 1.0, 100.0, info.max])
    rng, like = Rng(draw(st.integers(0, 2**32))), torch.empty(shape, dtype=torch.float64)
    x = (draw(scales) * rng.fork("x").normal(like)).clamp(max(low, -info.max), min(high, info.max)).to(dtype)
    outside = (x.double() < low) | (x.double() > high)
    x = torch.where(outside, torch.nextafter(x, torch.full_like(x, 0.2)), x)  # 0.1 and 0.3 have no half equivalent
    z = (x.double() + draw(scales) * rng.fork("z").normal(like)).to(dtype)  # may overflow to infinity
    return z, x, eps, low, high


@half
@every_norm
@given(data=st.data())
def test_half_precision_projections_are_inside_for_a_float32_judge(
    dtype: torch.dtype, norm: Norm, data: st.DataObject
) -> None:
    z, x, eps, low, high = data.draw(half_problems(dtype))
    threat = Threat(norm, eps, low, high)
    threat.check(x)
    found = [threat.project(z, x), *([threat.sample(x, Rng(1))] if eps < inf else []), *(threat.corners(x) or ())]
    for p in found:
        assert p.shape == x.shape
        assert p.dtype == dtype
        assert threat.contains(p, x).all()
        assert threat.contains(p.float(), x.float()).all()
    if corners := threat.corners(x):
        assert torch.equal(threat.project(z, x), z.clamp(*corners))


@half
@every_norm
@given(data=st.data())
def test_half_precision_projections_are_rounded_float64_projections(
    dtype: torch.dtype, norm: Norm, data: st.DataObject
) -> None:
    z, x, eps, low, high = data.draw(half_problems(dtype))
    assume(z.isfinite().all())
    threat = Threat(norm, eps, low, high)
    exact = threat.project(z.double(), x.double())
    ulp = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).smallest_normal
    assert ((threat.project(z, x).double() - exact).abs() <= ulp).all()


@half
def test_contains_judges_half_precision_without_rounding_eps_or_box(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5], [0.5], [0.25]], dtype=dtype)
    z = torch.tensor([[0.6], [0.59], [0.25]], dtype=dtype)
    distance = (z.double() - x.double()).abs()
    eps = float(distance[0]) * (1 - 1e-4) - 1e-6  # rounds to the first distance in half precision
    assert Threat(LInf(), eps).contains(z, x).tolist() == (distance[:, 0] <= eps).tolist() == [False, True, True]
    high = float(z[0]) * (1 - 1e-4)  # rounds to z in half precision
    assert Threat(LInf(), 1.0, 0.0, high).contains(z, x).tolist() == [False, True, True]


@every_norm
def test_projection_of_mixed_types_is_computed_in_the_wider_one(norm: Norm, rng: Rng) -> None:
    x = rng.fork("x").uniform(torch.empty(16, 3, 4, 4)).half()
    z = x.float() + rng.normal(torch.empty(x.shape))
    threat = Threat(norm, TYPICAL[norm.name][0])
    assert torch.equal(threat.project(z, x), threat.project(z, x.float()))
    assert torch.equal(threat.project(z.half(), x.float()), threat.project(z.half().float(), x.float()))


@every_norm
def test_lengths(norm: Norm) -> None:
    d = torch.tensor([[[[3.0, 0.0]], [[-4.0, 0.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]], [[[1.0, 0.0]], [[0.0, 1.0]]]])
    lengths = {"linf": [4, 0, 1], "l2": [5, 0, 2**0.5], "l1": [7, 0, 2], "l0": [1, 0, 2]}[norm.name]
    torch.testing.assert_close(norm.length(d), torch.tensor(lengths, dtype=torch.float32))
    if norm.name == "l0":
        assert norm.length(d.flatten(1)).tolist() == [2, 0, 2]  # in tabular data every number counts
    assert norm.length(torch.empty(0, 3, 2, 2)).shape == norm.length(torch.empty(0, 3)).shape == (0,)


@pytest.mark.parametrize("shape", [(8, 20), (8, 3, 4, 4)])
def test_steepest_step_maximizes_a_linear_function(shape: tuple[int, ...], rng: Rng) -> None:
    grad = rng.normal(torch.empty(shape, dtype=torch.float64))
    dual = {"linf": L1(), "l2": L2(), "l1": LInf()}
    for norm in (LInf(), L2(), L1(share=1e-9)):
        step = norm.steepest(grad)
        torch.testing.assert_close(norm.length(step), torch.ones(8, dtype=torch.float64))
        gain = (grad * step).flatten(1).sum(1)
        torch.testing.assert_close(gain, dual[norm.name].length(grad))
        for seed in range(5):
            other = norm.sample(grad, torch.ones(8), Rng(seed))
            assert ((grad * other).flatten(1).sum(1) <= gain).all()


def test_l1_step_is_spread_over_coordinates_and_l0_step_is_the_scaled_gradient(rng: Rng) -> None:
    grad = rng.normal(torch.empty(5, 50, dtype=torch.float64))
    step = L1(share=0.1).steepest(grad)
    assert ((step != 0).sum(1) == 5).all()
    assert (grad.abs()[step != 0].reshape(5, 5).amin(1) >= (grad.abs() * (step == 0)).amax(1)).all()
    torch.testing.assert_close(step, 0.2 * (step != 0) * grad.sign())
    peak = grad.abs().amax(1, keepdim=True)
    torch.testing.assert_close(L0().steepest(grad), grad / peak)


@every_norm
@pytest.mark.parametrize("shape", [(3, 7), (3, 2, 4, 4)])
def test_steepest_does_not_depend_on_the_size_of_the_gradient(norm: Norm, shape: tuple[int, ...], rng: Rng) -> None:
    grad = rng.uniform(torch.empty(shape)) - 0.5
    step = norm.steepest(grad)
    for scale in (1e-30, 1e-20, 1e20, 6e38):
        torch.testing.assert_close(norm.steepest((grad.double() * scale).float()), step)
    assert torch.equal(norm.steepest(torch.zeros(shape)), torch.zeros(shape))
    assert norm.steepest(torch.empty(0, *shape[1:])).shape == (0, *shape[1:])


@convex_norm
@pytest.mark.parametrize("shape", [(4000, 1), (4000, 6), (4000, 1, 3, 2)])
def test_samples_are_uniform_in_the_ball(norm: Norm, shape: tuple[int, ...], rng: Rng) -> None:
    like = torch.empty(shape, dtype=torch.float64)
    dims = like[:1].numel()
    radius = 0.5 + rng.fork("radius").uniform(like.new_empty(len(like)))
    d = norm.sample(like, radius, rng.fork("sample")).flatten(1) / radius[:, None]
    assert (norm.length(d) <= 1).all()
    assert stats.kstest(norm.length(d).numpy() ** dims, "uniform").pvalue > SIGNIFICANCE
    # the distribution of one squared coordinate of the Euclidean ball, and of one magnitude of the others
    one = {"linf": stats.uniform(), "l2": stats.beta(0.5, (dims + 1) / 2), "l1": stats.beta(1, dims)}[norm.name]
    for i in range(dims):
        assert (
            stats.kstest((d[:, i].square() if norm.name == "l2" else d[:, i].abs()).numpy(), one.cdf).pvalue
            > SIGNIFICANCE
        )
        assert stats.binomtest(int((d[:, i] > 0).sum()), len(d)).pvalue > SIGNIFICANCE
    z = d.mean(0) / d.std(0) * len(d) ** 0.5
    assert (z.abs() < 4).all()
    assert (torch.corrcoef(d.T).reshape(dims, dims).triu(1).abs() * len(d) ** 0.5 < 4).all()


def test_l0_samples_change_the_given_number_of_pixels_uniformly(rng: Rng) -> None:
    like = torch.empty(3000, 2, 3, 3)
    d = L0().sample(like, torch.full((3000,), 2.5), rng)
    changed = (d != 0).any(1).flatten(1)
    assert torch.equal(changed.sum(1), torch.full((3000,), 2))
    assert stats.chisquare(changed.sum(0).numpy()).pvalue > SIGNIFICANCE
    values = d.movedim(1, -1)[(d != 0).any(1)].flatten().double()
    assert stats.kstest((values.numpy() + 1) / 2, "uniform").pvalue > SIGNIFICANCE


@every_norm
def test_threat_samples_are_inside_and_keyed_by_sample(norm: Norm, rng: Rng) -> None:
    x = rng.fork("x").uniform(torch.empty(16, 3, 4, 4)).round()
    threat = Threat(norm, TYPICAL[norm.name][1])
    point = threat.sample(x, rng.at(torch.arange(16)))
    assert threat.contains(point, x).all()
    assert not torch.equal(point, x)
    assert torch.equal(threat.sample(x[5:7], rng.at(torch.tensor([5, 6]))), point[5:7])
    assert torch.equal(Threat(norm, 0.0).sample(x, rng), x)
    assert threat.sample(x[:0], rng.at(torch.arange(0))).shape == (0, 3, 4, 4)
    with pytest.raises(ValueError, match="eps is infinite"):
        Threat(norm, inf).sample(x, rng)


@every_norm
@pytest.mark.parametrize("eps", [0.0, 0.5, 3.0])
def test_contains_has_the_documented_tolerance(norm: Norm, eps: float) -> None:
    x, d = torch.zeros(2, 1, 5, dtype=torch.float64)
    if norm.name == "l0":
        d[0, : int(eps)] = 1
        assert Threat(norm, eps).contains(x + d, x).item()
        d[0, int(eps)] = 1e-12
        assert not Threat(norm, eps).contains(x + d, x).item()
        return
    threat = Threat(norm, eps, -10, 10)
    for factor, inside in ((1, True), (0.9, True), (1.1, False)):
        d[0, 2] = -eps - factor * (eps * 1e-5 + 1e-7)
        assert threat.contains(x + d, x).item() == inside


def test_contains_has_no_tolerance_for_the_box_and_rejects_non_finite_values() -> None:
    x = torch.full((6, 2), 0.5, dtype=torch.float64)
    adv = x.clone()
    adv[:5, 1] = torch.tensor([1 + 1e-12, -1e-12, float("nan"), inf, 1.0], dtype=torch.float64)
    assert Threat(LInf(), inf).contains(adv, x).tolist() == [False, False, False, False, True, True]
    assert Threat(LInf(), inf, -inf, inf).contains(adv, x).tolist() == [True, True, False, False, True, True]
    assert Threat(LInf(), 1).contains(x[:0], x[:0]).shape == (0,)


@pytest.mark.parametrize("eps", [-1e-9, -inf, float("nan")])
def test_negative_eps_is_refused(eps: float) -> None:
    with pytest.raises(ValueError, match="a radius must be zero or more"):
        Threat(L2(), eps)


@pytest.mark.parametrize("box", [(1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_empty_boxes_are_refused(box: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="is empty; low must be below high"):
        Threat(L2(), 1.0, *box)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(2, 3, dtype=torch.uint8), "divide images by 255"),
        (torch.tensor([[0.5, float("nan")]]), "NaN or infinite"),
        (torch.tensor([[0.5, inf]]), "NaN or infinite"),
        (torch.tensor([[0.5, 1.5]]), r"spans \[0.5, 1.5\] but the threat allows \[0, 1\]"),
        (torch.tensor([[-0.5, 0.5]]), "put normalization inside the model"),
    ],
)
def test_check_refuses_invalid_inputs(x: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Threat(LInf(), 0.1).check(x)


def test_check_accepts_inputs_in_the_box() -> None:
    Threat(LInf(), 0.1).check(torch.tensor([[0.0, 1.0]]))
    Threat(LInf(), 0.1).check(torch.empty(0, 3))
    Threat(LInf(), 0.1, -inf, inf).check(torch.tensor([[-1e30, 1e30]]))


def test_norms_have_names() -> None:
    assert {name: type(norm) for name, norm in NORMS.items()} == {"linf": LInf, "l2": L2, "l1": L1, "l0": L0}
    assert str(Threat(LInf(), 8 / 255)) == "linf eps 0.0313725"


@pytest.mark.parametrize("norm", [LInf, "linf", None])
def test_objects_that_are_not_norms_are_refused(norm: object) -> None:
    with pytest.raises(ValueError, match="with the parentheses"):
        Threat(norm, 0.1)  # type: ignore[arg-type]


def test_an_eps_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"eps is '8/255' but must be a number"):
        Threat(LInf(), "8/255")  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", NORMS.values(), ids=lambda norm: norm.name)
def test_each_sample_may_have_a_radius_of_its_own(norm: Norm, rng: Rng) -> None:
    x = rng.fork("x").uniform(torch.empty(4, 10))
    x_adv, radius = x + rng.normal(x), torch.tensor([0.0, 0.5, 1.0, 3.0])
    found = Threat(norm, 9.0).project(x_adv, x, radius)
    for i in range(4):
        alone = Threat(norm, radius[i].item()).project(x_adv[i : i + 1], x[i : i + 1])
        torch.testing.assert_close(found[i : i + 1], alone)
