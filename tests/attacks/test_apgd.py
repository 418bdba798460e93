"""Auto-PGD: trajectories of the authors' code, the schedule of step sizes, closed forms, targets, refused settings."""

from collections import Counter, defaultdict
from math import inf, prod
from typing import Any

import pytest
import torch
from subjects import Affine, Counted
from torch import Tensor, nn

from holdfast.attacks._adaptive import Adaptive
from holdfast.attacks._rules import Point
from holdfast.attacks._sparse import stages
from holdfast.attacks.apgd import APGD
from holdfast.contracts import Cost, Loss, Outputs, Rows
from holdfast.crafting import using
from holdfast.geometry import L0, L1, L2, NORMS, LInf, Threat
from holdfast.losses.classification import cross_entropy, dlr, logit_difference, targeted_cross_entropy, targeted_dlr
from holdfast.rng import Rng


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    """Numbers in [-1, 1] without a pattern, the same on every machine."""
    i = torch.arange(prod(shape), dtype=torch.float64)
    return torch.sin(1.7 * i * i / 7 + 0.9 * i + phase).reshape(shape)


class Waves(nn.Module):
    """A network with one hidden layer and five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Parameter(wave(16, 12)), nn.Parameter(wave(5, 16, phase=1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(10 * (x - 0.5) @ self.hidden.T + 0.3 * wave(16)) @ self.out.T


# The losses at all iterates of one sample, computed by pyautoattack 0.2.0 from the same start in 20 steps: the entries
# are (norm, eps, loss, the number of the sample, losses). In l1 that code counts a coordinate as changed also if it
# differs from x by a rounding error; for these numbers it counted changes of more than 1e-5.
FROZEN: dict[str, tuple[str, float, Loss, int, list[float]]] = {
    "linf cross entropy": (
        "linf", 0.08, cross_entropy, 0,
        [0.69844, 5.08167, 3.52615, 4.54203, 1.49976, 6.34512, 7.13679, 5.56939, 6.87316, 7.25223, 7.2148, 7.51938,
         7.38649, 7.56007, 7.61902, 7.70792, 7.78848, 7.84404, 7.87045, 7.88659, 7.8995],
    ),
    "linf dlr": (
        "linf", 0.018, dlr, 1,
        [-0.79443, -0.34038, -0.40251, -0.30252, -0.26717, -0.25568, -0.25751, -0.26183, -0.2573, -0.25571, -0.25729,
         -0.25379, -0.25502, -0.25441, -0.25353, -0.25658, -0.25453, -0.25342, -0.25407, -0.25367, -0.25346],
    ),
    "linf targeted dlr": (
        "linf", 0.02, targeted_dlr, 0,
        [-0.51159, 0.26753, 0.18456, 0.29134, 0.24936, 0.28157, 0.35577, 0.37052, 0.38329, 0.38964, 0.38241, 0.39041,
         0.39586, 0.39419, 0.3969, 0.39808, 0.39746, 0.39831, 0.39876, 0.39897, 0.39876],
    ),
    "l2 cross entropy": (
        "l2", 0.2, cross_entropy, 1,
        [1.14912, 4.76629, 5.04126, 5.3716, 5.66016, 5.78694, 5.82449, 5.81074, 5.86178, 5.93324, 5.96166, 5.96493,
         5.96555, 5.96572, 5.96577, 5.96579, 5.9658, 5.9658, 5.9658, 5.9658, 5.9658],
    ),
    "l1 cross entropy": (
        "l1", 0.4, cross_entropy, 0,
        [4.35305, 6.76846, 9.89833, 9.91888, 10.87168, 11.03489, 11.11907, 6.43231, 6.49655, 4.35161, 6.49526, 7.19328,
         8.06042, 8.29152, 1.22471, 2.44424, 4.53403, 5.21738, 4.68141, 5.03609, 4.78205, 4.9931, 5.2496],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FROZEN)
def test_the_losses_are_those_of_the_authors_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, eps, loss, sample, expected = FROZEN[name]
    model, x, noise = Waves(), 0.5 + 0.1 * wave(2, 12, phase=2.0), wave(2, 12, phase=5.0)
    monkeypatch.setattr(Rng, "uniform", lambda self, like: (noise + 1) / 2)
    monkeypatch.setattr(Rng, "normal", lambda self, like: noise)
    ranked = model(x).argsort(dim=1, descending=True)
    rows = Rows(ranked[:, 0], torch.arange(2), {"target": ranked[:, 1]})
    attack = APGD(threat=Threat(NORMS[norm], eps), steps=20, loss=loss, keep="worst", targeted="targeted" in name)
    losses: list[Tensor] = []
    attack(model, x, rows, rng=Rng(0), watch=lambda rows, x_adv, loss, cost: losses.append(loss))
    assert torch.stack(losses)[:, sample].tolist() == pytest.approx(expected, abs=2e-5)


def sizes(losses: list[float], steps: int = 100) -> list[float]:
    """The step size after each evaluation, if the losses are these."""
    rule, x, found = Adaptive(1.0, steps), torch.zeros(1, 1), []
    state = rule.begin(x)
    for t, loss in enumerate(losses):
        point = Point(x, x, torch.ones(1, 1), torch.tensor([loss]), torch.tensor([t]), Threat(LInf(), 1.0, -9, 9))
        _, state = rule.move(point, state)
        found.append(state[0].item())
    return found


def test_a_flat_loss_halves_the_step_at_every_published_checkpoint() -> None:
    found = sizes([-1.0] * 101)
    changes = [t for t in range(1, 101) if found[t] < found[t - 1]]
    assert changes == [22, 41, 57, 70, 80, 87, 93, 99]
    assert found[-1] == 2 / 2**8


def test_a_growing_loss_keeps_the_step() -> None:
    assert set(sizes([1.0 + t for t in range(101)])) == {2.0}


def test_the_first_loss_after_the_start_is_compared_with_zero() -> None:
    """16 of 22 increases are too few, 17 enough; the comparison with 0 is one of them if the loss is positive."""
    for shift, step in ((10.0, 2.0), (-100.0, 1.0)):
        losses = [shift + 50, shift] + [shift + 1 + t for t in range(16)] + [shift + 15 - t for t in range(5)]
        assert len(losses) == 23
        assert sizes(losses)[22] == step


def test_a_best_loss_that_has_not_grown_halves_the_step_unless_the_last_checkpoint_did() -> None:
    grow = [float(t) for t in range(23)]
    low = [0.0 + t / 100 for t in range(19)]  # increases, but below the best loss
    found = sizes([*grow, *low, *low[:16]])
    assert found[22] == 2.0
    assert found[41] == 1.0
    assert found[57] == 1.0  # the best loss has not grown, but the step was just halved


def test_the_stages_in_l1_take_30_30_and_40_percent_in_three_balls() -> None:
    assert [(stage.first, stage.steps, stage.factor) for stage in stages(100)] == [(0, 30, 3), (31, 30, 2), (62, 40, 1)]
    assert [stage.steps for stage in stages(1)] == [1]


@pytest.mark.parametrize(("norm", "share"), [(LInf(), 1 - 1e-9), (L2(), 1 - 1e-6), (L1(), 0.99)], ids=str)
def test_the_optimum_of_a_linear_model_is_found(norm: Any, share: float, rng: Rng) -> None:
    """Without a box the largest change of w·x is eps times the dual norm of w."""
    w = rng.normal(torch.empty(1, 30, dtype=torch.float64))
    model = Affine(torch.cat([w, -w]), torch.zeros(2, dtype=torch.float64))
    x = 10 * w.sign() * rng.fork("x").uniform(torch.empty(5, 30, dtype=torch.float64))
    attack = APGD(threat=Threat(norm, 0.5, -inf, inf), loss=logit_difference, keep="worst")
    change = (attack(model, x, torch.zeros(5, dtype=torch.int64), rng=rng) - x) @ w[0]
    dual = {"linf": w.abs().sum(), "l2": w.norm(), "l1": w.abs().max()}[norm.name]
    assert (change <= -share * 0.5 * dual).all()
    assert (change >= -0.5 * dual * (1 + 1e-5)).all()


def robust(n: int) -> tuple[nn.Module, Tensor, Rows]:
    """A model with five classes that holds on all samples at a tiny eps."""
    model, x = Waves(), 0.5 + 0.4 * wave(n, 12, phase=3.0)
    return model, x, Rows(model(x).argmax(1), torch.arange(n))


def test_a_targeted_loss_aims_at_the_most_likely_wrong_classes(rng: Rng) -> None:
    model, x, rows = robust(6)
    counted, aims = Counted(model), defaultdict(list)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        if cost.backwards:
            for index, target in zip(rows.index.tolist(), rows["target"].tolist(), strict=True):
                aims[index].append(target)

    attack = APGD(threat=Threat(LInf(), 1e-6), steps=4, restarts=2, loss=targeted_dlr, targets=3)
    with using("module"):
        attack(counted, x, rows, rng=rng, watch=watch)
    ranked = model(x).argsort(dim=1, descending=True)[:, 1:4].tolist()
    for i in range(6):
        assert Counter(aims[i]) == dict.fromkeys(ranked[i], 2 * 5)
        assert list(dict.fromkeys(aims[i])) == ranked[i]  # the most likely class first
    assert counted.cost == Cost(forwards=6 * (1 + 30), backwards=6 * 30)


def test_any_misclassification_ends_the_runs_of_a_targeted_loss(rng: Rng) -> None:
    model, x, rows = robust(6)
    attack = APGD(threat=Threat(LInf(), 0.3), steps=10, loss=targeted_cross_entropy, targets=4)
    seen: list[int] = []
    x_adv = attack(model, x, rows, rng=rng, watch=lambda rows, *_: seen.extend(rows.index.tolist()))
    assert (model(x_adv).argmax(1) != rows.y).all()
    assert len(seen) < 6 * 11


class Ring(nn.Module):
    """Misclassifies inputs that differ from 0 by more than 1 in l1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.ones(len(x)).to(x) + 0 * x.sum(1), x.abs().sum(1)], 1)


def test_points_of_the_larger_balls_in_l1_never_count(rng: Rng) -> None:
    x, y = torch.zeros(3, 20, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    threat, seen = Threat(L1(), 0.9, -5, 5), list[Tensor]()
    for keep in ("fooled", "worst"):
        attack = APGD(threat=threat, steps=20, keep=keep)  # type: ignore[arg-type]
        x_adv = attack(Ring(), x, y, rng=rng, watch=lambda rows, x_adv, loss, cost: seen.append(x_adv))
        assert threat.contains(x_adv, x).all()
    assert max(point.abs().sum(1).max() for point in seen) > 2


def test_impossible_settings_are_refused_with_a_way_out(rng: Rng) -> None:
    model, x, rows = robust(2)
    threat = Threat(LInf(), 0.1)
    with pytest.raises(
        ValueError, match="targets is 9 but a model with 5 classes has 4 wrong ones; give a number from"
    ):
        APGD(threat=threat, loss=targeted_dlr)(model, x, rows, rng=rng)
    two = Affine(wave(2, 12), wave(2))
    with pytest.raises(ValueError, match="DLR needs at least 3 classes but the model has 2; use cross_entropy"):
        APGD(threat=threat, loss=dlr)(two, x, torch.zeros(2, dtype=torch.int64), rng=rng)
    three = Affine(wave(3, 12), wave(3))
    with pytest.raises(ValueError, match="targeted DLR needs at least 4 classes but the model has 3"):
        APGD(threat=threat, loss=targeted_dlr, targets=2)(three, x, torch.zeros(2, dtype=torch.int64), rng=rng)
    with pytest.raises(ValueError, match="norm is 'l0' but it must be one of linf, l2, l1"):
        APGD(threat=Threat(L0(), 3.0))
    with pytest.raises(ValueError, match="targets is 0 but an attack needs at least one class"):
        APGD(threat=threat, loss=targeted_dlr, targets=0)
    with pytest.raises(ValueError, match='once per target needs a keep other than "last"'):
        APGD(threat=threat, loss=targeted_dlr, keep="last")


def test_a_custom_loss_is_maximized(rng: Rng) -> None:
    def leftwards(out: Outputs, rows: Rows) -> Tensor:
        return -out.x @ torch.arange(1.0, 13).to(out.x)

    model, x, rows = robust(3)
    x_adv = APGD(threat=Threat(LInf(), 0.05), steps=5, loss=leftwards, keep="last")(model, x, rows, rng=rng)
    torch.testing.assert_close(x_adv, (x - 0.05).clamp(0, 1))
