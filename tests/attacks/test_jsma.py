"""JSMA moves the pair of features that brute force finds, and needs no table of pairs."""

import subprocess
import sys
from itertools import combinations
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import Affine, Counted
from torch import Tensor

from holdfast.attacks import _pairs
from holdfast.attacks.jsma import JSMA
from holdfast.contracts import Cost, Rows
from holdfast.geometry import L0, L2, Threat
from holdfast.rng import Rng


def score(a: Tensor, b: Tensor, p: int, q: int) -> float:
    """The saliency of a pair; zero if it is not salient."""
    up, down = float(a[p] + a[q]), float(b[p] + b[q])
    return up * down if up > 0 and down > 0 else 0.0


def check_pairs(a: Tensor, b: Tensor) -> None:
    """The pairs found have the best score of all pairs, and there is none exactly where no pair is salient."""
    pairs, found = _pairs.best_pairs(a, b)
    for i in range(len(a)):
        best = max((score(a[i], b[i], p, q) for p, q in combinations(range(a.shape[1]), 2)), default=0.0)
        assert bool(found[i]) == (best > 0)
        p, q = pairs[i].tolist()
        assert not found[i] or (p != q and score(a[i], b[i], p, q) == pytest.approx(best, rel=1e-12))


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([0.7, 2.0, 1e6]), st.sampled_from([-0.9, 0.0, 0.9]))
def test_pairs_equal_brute_force_also_with_ties(seed: int, d: int, levels: float, correlation: float) -> None:
    """Few levels make ties: 100 examples of 32 samples each."""
    rng = Rng(seed)
    a = rng.fork("a").normal(torch.empty(32, d, dtype=torch.float64))
    b = correlation * a + (1 - correlation**2) ** 0.5 * rng.fork("b").normal(a)
    a, b = (levels * a).round() / levels, (levels * b).round() / levels
    left_out = rng.fork("left out").uniform(a) < 0.2
    check_pairs(a.masked_fill(left_out, -inf), b.masked_fill(left_out, -inf))


def test_pairs_of_many_candidates_are_searched_in_parts(rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a falling curve no feature dominates another, so all of them are candidates."""
    a = rng.uniform(torch.empty(4, 30, dtype=torch.float64))
    monkeypatch.setattr(_pairs, "_AT_ONCE", 300)
    check_pairs(a, 1 - a**2)
    check_pairs(1e-300 * a, 1e-300 * (1 - a**2))


def linear(rng: Rng, classes: int, shape: tuple[int, ...]) -> tuple[Affine, Tensor, Tensor]:
    d = torch.Size(shape).numel()
    model = Affine(rng.fork("w").normal(torch.empty(classes, d, dtype=torch.float64)), torch.zeros(classes).double())
    x = rng.fork("x").uniform(torch.empty(12, *shape, dtype=torch.float64)).mul(1.4).sub(0.2).clamp(0, 1)
    return model, x, model(x).argmax(1)


def by_hand(model: Affine, x: Tensor, y: int, target: int, theta: float) -> Tensor | None:
    """JSMA on one sample of an affine model with the table of all pairs; None if it fails."""
    sign, x_adv = (1 if theta > 0 else -1), x.flatten().clone()
    a = model.weight.detach()[target] * sign
    b = a - model.weight.detach().sum(0) * sign
    while int(model(x_adv[None]).argmax()) == y:
        free = [i for i in range(len(x_adv)) if (x_adv[i] < 1 if theta > 0 else x_adv[i] > 0)]
        best = max(combinations(free, 2), key=lambda pair: score(a, b, *pair), default=None)
        if best is None or score(a, b, *best) == 0:
            return None
        x_adv[list(best)] = (x_adv[list(best)] + theta).clamp(0, 1)
    return x_adv.reshape(x.shape)


@pytest.mark.parametrize("theta", [1.0, -1.0, 0.3])
def test_agrees_with_a_plain_loop_and_takes_the_shortest_of_all_targets(theta: float, rng: Rng) -> None:
    model, x, y = linear(rng, 4, (1, 5, 5))
    x_adv = JSMA(threat=Threat(L0(), inf), theta=theta)(model, x, y, rng=rng)
    for i in range(len(x)):
        tried = [by_hand(model, x[i], int(y[i]), k, theta) for k in range(4) if k != y[i]]
        least = min((int((point != x[i]).sum()) for point in tried if point is not None), default=0)
        assert int((x_adv[i] != x[i]).sum()) == least
        assert least == 0 or any(point is not None and torch.allclose(point, x_adv[i]) for point in tried)
    assert (model(x_adv).argmax(1) != y).sum() > 6


def test_a_given_target_is_the_only_success(rng: Rng) -> None:
    model, x, y = linear(rng, 4, (1, 6, 6))
    rows = Rows(y, torch.arange(len(y)), {"target": model(x).topk(2).indices[:, 1]})
    x_adv = JSMA(threat=Threat(L0(), inf), targeted=True)(model, x, rows, rng=rng)
    changed = (x_adv != x).flatten(1).any(1)
    assert changed.sum() > 6
    assert (model(x_adv).argmax(1) == rows["target"])[changed].all()


def test_a_budget_of_pixels_is_a_prefix_of_the_unlimited_attack(rng: Rng) -> None:
    """Channels are features of their own, but the norm counts a pixel once."""
    model, x, y = linear(rng, 3, (3, 3, 3))
    whole = JSMA(threat=Threat(L0(), inf))(model, x, y, rng=rng)
    lengths = L0().length(whole - x)
    assert ((whole != x).sum((1, 2, 3)) > lengths).any()
    for eps in (0, 1, 2, 3, 5):
        part = JSMA(threat=Threat(L0(), eps))(model, x, y, rng=rng)
        assert torch.equal(part, torch.where((lengths <= eps)[:, None, None, None], whole, x))


def test_saturated_features_are_left_out(rng: Rng) -> None:
    """The two features with the largest weights are at the edge of the box."""
    model = Affine(torch.tensor([[-1.0] * 4, [9.0, 8.0, 3.0, 2.0]]), torch.tensor([20.0, 0.0]))
    x = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    x_adv = JSMA(threat=Threat(L0(), inf))(model, x, torch.tensor([0]), rng=rng)
    assert torch.equal(x_adv, torch.ones(1, 4))


def test_a_pair_costs_one_forward_and_two_backwards(rng: Rng) -> None:
    model, x, y = linear(rng, 3, (1, 6, 6))
    counted = Counted(model)
    attack = JSMA(threat=Threat(L0(), inf), steps=1, targets=1)
    x_adv = attack(counted, x, y, rng=rng)
    unfinished = len(x)  # after one pair every sample is evaluated again
    assert counted.cost == Cost(2 * len(x) + unfinished, 2 * len(x))
    assert (L0().length(x_adv - x) <= 2).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threat": Threat(L2(), 2)}, "jsma has no form for the norm l2; give it a threat in l0"),
        ({"theta": 0.0}, r"theta is 0\.0 but features must move"),
        ({"targets": 0}, "targets is 0 but it must be in"),
        ({"targets": 1, "targeted": True}, "leave out the number of targets"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JSMA(**{"threat": Threat(L0(), 4), **settings})


MEASURED = """
import resource, torch
from torch import nn
from holdfast.attacks.fab import FAB
from holdfast.attacks.jsma import JSMA
from holdfast.geometry import L0, LInf, Threat
from holdfast.rng import Rng
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 1024, 10))
x = torch.rand(100, 3, 32, 32)
y = model(x).argmax(1)
FAB(threat=Threat(LInf(), 1.0), steps=2, targets=1)(model, x, y, rng=Rng(0))
JSMA(threat=Threat(L0(), 6), targets=1)(model, x, y, rng=Rng(0))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_a_hundred_color_images_take_less_than_two_gigabytes() -> None:
    """A table of all pairs would take 3.8 GB in float32."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2 << 30


def test_relative_saliency_raises_the_target_beside_the_mean_of_the_logits(rng: Rng) -> None:
    model, x, y = linear(rng, 4, (9,))
    target = (y + 1) % 4
    attack = JSMA(threat=Threat(L0(), 2), targeted=True, saliency="relative", steps=1)
    seen: list[Tensor] = []
    attack(model, x, Rows(y, torch.arange(12), {"target": target}), rng=rng, watch=lambda r, p, *_: seen.append(p))
    weight = model.weight.detach()
    rise = (weight[target] - weight.mean(0)).masked_fill(x >= 1, -inf)
    top, pairs = rise.topk(2, dim=1)
    expected = x.scatter(1, pairs, 1.0)[top.sum(1) > 0]
    assert len(expected) > 6
    assert torch.equal(seen[-1], expected)


def test_unknown_saliency_is_refused() -> None:
    with pytest.raises(ValueError, match="saliency is 'pairs' but it must be one of pair, relative"):
        JSMA(threat=Threat(L0(), 2), saliency="pairs")
