"""Square Attack follows AutoAttack's with the same random numbers, and is exact on linear models."""

from dataclasses import dataclass, field
from math import inf, prod, sqrt

import pytest
import torch
from subjects import Affine
from torch import Tensor

from holdfast.attacks._windows import HALVED, Bumps, Signs, bump, pair, window
from holdfast.attacks.square import Square
from holdfast.contracts import Cost, Rows
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.losses.classification import targeted_cross_entropy
from holdfast.rng import Rng

# Margins of the queries of pyautoattack 0.2.0, SquareAttack(n_queries=40, resc_schedule=True), on one image of shape
# SHAPE and ``scores`` below, with torch.rand replaced by ``Draws``; l1 in float32, because its projection casts to it.
SHAPE = {"linf": (3, 6, 6), "l2": (3, 10, 10), "l1": (3, 10, 10)}
EPS = {"linf": 0.03, "l2": 0.25, "l1": 2.0}
QUERIES = 40
REFERENCE = {
    "linf": [
        -4.549692, -4.106152, -4.022372, -4.142396, -4.020597, -4.101058, -4.125838, -4.101058,
        -3.942421, -4.048528, -3.943535, -3.848114, -3.812786, -3.869659, -3.950407,
    ],
    "l2": [
        -2.080115, -2.09028, -1.972962, -2.143612, -2.031023, -2.003613, -1.989122, -1.831288,
        -1.737706, -1.649495, -1.539045, -1.660964, -1.531518, -1.557862, -1.594771,
    ],
    "l1": [
        -1.972889, -1.213221, -1.172811, -1.166259, -0.167947, -0.178553, -0.231759, -0.167947,
        -0.77363, -0.918955, -0.612635, -0.924634, -0.199398, -0.538122,
    ],
}  # fmt: skip


def scores(x: Tensor) -> Tensor:
    weight = Rng(3).fork("weight").normal(torch.empty(4, x[0].numel(), dtype=torch.float64))
    return torch.tanh(x.flatten(1).double() - 0.5) @ weight.T


class Draws:
    """The numbers that replace torch.rand in the reference."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, n: int) -> list[float]:
        self.calls += 1
        numbers: list[float] = Rng(11).fork(self.calls - 1).uniform(torch.empty(1, n, dtype=torch.float64))[0].tolist()
        return numbers


def reference_draws(norm: str, moves: Signs | Bumps) -> list[list[float]]:
    """The draws of the reference in the order of ours; its windows never touch the last row and column."""
    draws = Draws()
    c, h, w = SHAPE[norm]
    linf = norm == "linf"
    if linf:
        found = [draws(c * w)]
    else:
        tiles = moves.tiles[0][2] * moves.tiles[1][2]
        found = [[u for _ in range(tiles) for n in (1, c) for u in draws(n)]]
    for query in range(QUERIES):
        side = moves.sizes[sum(query * 10_000 // QUERIES > bound for bound in HALVED)][0].item()
        corners = [int(draws(1)[0] * (extent - side)) for extent in ((h, w) if linf else (h, w, h, w))]
        places = [(corner + 0.5) / (extent - side + 1) for corner, extent in zip(corners, (h, w, h, w), strict=False)]
        found.append([*places, *([] if linf else draws(1)), *draws(c)])
    return found


@dataclass
class Given:
    """An rng that returns given draws: the first for the start, the others by the number of the query."""

    draws: list[list[float]]
    numbers: list[int] = field(default_factory=list)

    def fork(self, name: str) -> "Given":
        return Given(self.draws)

    def at(self, index: Tensor) -> "Given":
        return Given(self.draws, index.tolist())

    def uniform(self, like: Tensor) -> Tensor:
        rows = [self.draws[min(number, QUERIES)][: like.shape[1]] for number in self.numbers]
        return torch.tensor(rows, dtype=like.dtype).reshape(like.shape)


@pytest.mark.parametrize("norm", REFERENCE)
def test_follows_the_reference_with_the_same_draws(norm: str) -> None:
    dtype = torch.float32 if norm == "l1" else torch.float64
    x = Rng(5).uniform(torch.empty(1, *SHAPE[norm], dtype=torch.float64))
    y, x, threat = scores(x).argmax(1), x.to(dtype), Threat(NORMS[norm], EPS[norm])
    moves = (Signs if norm == "linf" else Bumps)(threat, x, 0.8)
    seen: list[float] = []
    attack = Square(threat=threat, queries=QUERIES + 1)  # the reference does not count its start
    rng = Given(reference_draws(norm, moves))
    attack(scores, x, y, rng=rng, watch=lambda rows, x_adv, loss, cost: seen.append(loss.item()))
    assert seen[: len(REFERENCE[norm])] == pytest.approx(REFERENCE[norm], abs=2e-5 if norm == "l1" else 2e-6)


def test_windows_of_cifar_have_the_published_sides() -> None:
    sides = [window(0.8 / 2**level, 32, 32, odd=False) for level in range(10)]
    assert [height for height, width in sides if height == width] == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("h", "w"), [(1, 100), (100, 1), (2, 50), (50, 3), (7, 9), (1, 1), (5, 5)])
@pytest.mark.parametrize("odd", [False, True])
def test_windows_fit_images_of_any_shape(h: int, w: int, odd: bool) -> None:
    for level in range(10):
        a, b = window(0.8 / 2**level, h, w, odd)
        assert 1 <= a <= h
        assert 1 <= b <= w
        assert window(0.8 / 2**level, w, h, odd) == (b, a)
    a, b = window(0.8, h, w, odd)
    assert a * b >= 0.5 * h * w


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize(("a", "b"), [(3, 7), (5, 5), (1, 4), (4, 1), (6, 9)])
def test_bumps_equal_a_loop_over_squares(a: int, b: int, l2: bool) -> None:
    found = torch.zeros(a, b, dtype=torch.float64)
    for k in range(max(a // 2, b // 2) + 1):
        for i in range(a):
            for j in range(b):
                found[i, j] += (max(abs(i - a // 2), abs(j - b // 2)) <= k) * (k + 1) ** (-2 if l2 else -4)
    found /= found.norm() if l2 else found.sum()
    torch.testing.assert_close(bump(a, b, l2), found)
    both = pair(a, b, l2)
    assert (both.norm() if l2 else both.abs().sum()).item() == pytest.approx(1)
    assert (both[: a // 2] > 0).all()
    assert (both[a // 2 :] < 0).all()


@pytest.mark.parametrize(
    ("norm", "shape"),
    [("linf", (12,)), ("linf", (1, 3, 4)), ("linf", (2, 3, 2)), ("l2", (12,)), ("l2", (1, 3, 4)), ("l1", (12,))],
)
def test_finds_what_a_closed_form_finds_on_a_linear_model(norm: str, shape: tuple[int, ...]) -> None:
    """A random search in twelve dimensions comes close: all samples that two thirds of eps would break are broken."""
    weight = Rng(1).fork("weight").normal(torch.empty(2, 12, dtype=torch.float64))
    x = Rng(1).fork("x").normal(torch.empty(20, *shape, dtype=torch.float64))
    model = Affine(weight, torch.zeros(2, dtype=torch.float64))
    z = model(x).detach()
    dual = {"linf": 1, "l2": 2, "l1": inf}[norm]
    distance = (z[:, 0] - z[:, 1]).abs() / torch.linalg.vector_norm(weight[0] - weight[1], dual)
    eps = float(distance.median())
    x_adv = Square(threat=Threat(NORMS[norm], eps, -inf, inf), queries=300)(model, x, z.argmax(1), rng=Rng(0))
    broken = model(x_adv).argmax(1) != z.argmax(1)
    assert not broken[distance > eps * 1.0001].any()
    assert broken[distance < eps * 2 / 3].all()


def test_a_window_that_would_change_nothing_is_tried_with_the_opposite_signs() -> None:
    threat = Threat(LInf(), 0.1)
    x = torch.full((1, 1, 3, 3), 0.5, dtype=torch.float64)
    moves = Signs(threat, x, 0.8)
    u = torch.tensor([[0.5, 0.5, 0.9]], dtype=torch.float64)
    level = torch.tensor([len(HALVED)])  # a window of one pixel, in the middle
    changed = moves.move(x, {"best": x + 0.1, "low": x - 0.1, "high": x + 0.1}, moves.windows(level, u))
    assert changed[0, 0, 1, 1].item() == pytest.approx(0.4)
    assert (changed != x + 0.1).sum() == 1


def test_targeted_attacks_climb_the_cross_entropy_of_the_target() -> None:
    x = Rng(5).uniform(torch.empty(2, 3, 6, 6, dtype=torch.float64))
    y = scores(x).argmax(1)
    rows = Rows(y, torch.arange(2), {"target": (y + 1) % 4})
    best: dict[int, float] = {}

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        z = scores(x_adv)
        torch.testing.assert_close(loss, targeted_cross_entropy(type("O", (), {"logits": z}), rows))
        for index, value in zip(rows.index.tolist(), loss.tolist(), strict=True):
            best[index] = max(value, best.get(index, -inf))

    attack = Square(threat=Threat(LInf(), 0.01), queries=30, targeted=True)
    x_adv = attack(scores, x, rows, rng=Rng(0), watch=watch)
    z = scores(x_adv)
    last = z.log_softmax(1).gather(1, rows["target"][:, None]).squeeze(1)
    assert last.tolist() == pytest.approx([best[0], best[1]])


@pytest.mark.parametrize("p", [0.0, 1.5])
def test_a_share_outside_the_image_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="it is the share of the image"):
        Square(threat=Threat(LInf(), 0.1), p=p)


def test_sides_are_rounded_square_roots() -> None:
    assert window(0.8, 28, 28, odd=False) == (round(sqrt(0.8 * 784)),) * 2
    assert prod(window(0.8, 28, 28, odd=True)) == 625
