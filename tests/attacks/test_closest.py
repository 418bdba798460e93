"""Minimal-norm attacks find the shortest perturbation of an affine model, which has a closed form or a short search."""

from dataclasses import replace
from math import inf

import pytest
import torch
from subjects import Affine
from torch import Tensor, nn

from holdfast.attacks._closest import ClosestAttack, difference, succeeds
from holdfast.attacks.cw_l2 import CWL2
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.cw_linf_original import CWLinfOriginal
from holdfast.attacks.ddn import DDN
from holdfast.attacks.fmn import FMN
from holdfast.contracts import Cost, Meter, Outputs, Rows
from holdfast.evaluation.judge import judge
from holdfast.geometry import NORMS, Threat
from holdfast.rng import Rng

DUAL = {"linf": 1, "l2": 2, "l1": inf}
N, DIMS = 40, 8

CASES = {  # the class, the norm, settings, and the share of samples that must be within 2 % of the optimum
    "fmn-linf": (FMN, "linf", {"steps": 120}, 1.0),
    "fmn-l2": (FMN, "l2", {"steps": 120}, 1.0),
    "fmn-l1": (FMN, "l1", {"steps": 120}, 1.0),
    "ddn": (DDN, "l2", {"steps": 120, "gamma": 0.03}, 1.0),
    "cw_l2": (CWL2, "l2", {"steps": 120, "rate": 0.02, "c": 0.3, "searches": 5}, 0.9),
    "cw_linf_original": (
        CWLinfOriginal,
        "linf",
        {"steps": 50, "rate": 0.01, "c": 0.1, "largest_c": 2, "shrink": 0.98},
        0.9,
    ),
}
each = pytest.mark.parametrize("case", CASES)


def made(case: str, low: float = -inf, high: float = inf, eps: float = inf, targeted: bool = False) -> ClosestAttack:
    cls, norm, settings, _ = CASES[case]
    return cls(threat=Threat(NORMS[norm], eps, low, high), targeted=targeted, **settings)


def problem(rng: Rng, classes: int) -> tuple[Affine, Tensor, Tensor]:
    """An affine model with inputs in [0, 1], those nearest to the boundary left out, and their predicted labels."""
    weight = rng.fork("weight").normal(torch.empty(classes, DIMS, dtype=torch.float64))
    x = rng.fork("x").uniform(torch.empty(2 * N, DIMS, dtype=torch.float64))
    model = Affine(weight, -0.5 * weight.sum(1))
    far = model(x).detach().topk(2).values.diff().squeeze(1).argsort()[:N]
    return model, x[far], model(x[far]).argmax(1)


def distances(model: Affine, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """(n, classes) distances to the half-space of each other class; infinite for the label."""
    z = model(x).detach()
    gap = z.gather(1, y[:, None]) - z
    length = torch.linalg.vector_norm(model.weight[y][:, None] - model.weight[None], DUAL[norm], dim=2).detach()
    return torch.where(length > 0, gap / length, inf)


def boxed_distance(w: Tensor, gap: Tensor, x: Tensor, norm: str) -> Tensor:
    """The least length of d with d·w = gap and x + d in [0, 1], by bisection or greedily; infinite if there is none."""
    room = torch.where(w > 0, 1 - x, x)
    if norm in ("l1", "l0"):  # the coordinates that gain most per unit (l1) or in all (l0) first
        order = (w.abs() if norm == "l1" else w.abs() * room).argsort(dim=1, descending=True)
        gain, room = (w.abs() * room).gather(1, order), room.gather(1, order)
        full = gain.cumsum(1) <= gap[:, None]
        rest = (gap[:, None] - (gain * full).sum(1, keepdim=True)) / w.abs().gather(1, order)
        last = rest.gather(1, full.sum(1, keepdim=True).clamp_max(DIMS - 1)).squeeze(1)
        found = full.sum(1) + 1.0 if norm == "l0" else (room * full).sum(1) + last
        return torch.where(gain.sum(1) > gap, found, inf)
    low, high = torch.zeros(len(x)).double(), torch.full((len(x),), 1e3).double()
    for _ in range(80):
        middle = (low + high) / 2
        size = middle[:, None] * (w.abs() if norm == "l2" else 1)
        enough = (w.abs() * torch.minimum(size, room)).sum(1) >= gap
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    d = torch.minimum(high[:, None] * (w.abs() if norm == "l2" else 1), room)
    return torch.where((w.abs() * room).sum(1) > gap, NORMS[norm].length(d), inf)


def lengths(attack: ClosestAttack, model: nn.Module, x: Tensor, y: Tensor | Rows, rng: Rng) -> Tensor:
    """The lengths of the perturbations, infinite where the attack does not succeed."""
    x_adv = attack(model, x, y, rng=rng)
    assert attack.threat.contains(x_adv, x).all()
    found = Rows.of(y).reached(model(x_adv).argmax(1), attack.targeted)
    return torch.where(found, attack.threat.norm.length(x_adv - x), inf)


@each
def test_two_classes_without_a_box(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    attack = made(case)
    exact = distances(model, x, y, attack.threat.norm.name).amin(1)
    found = lengths(attack, model, x, y, rng)
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= 1.02 * exact).double().mean() >= CASES[case][3]


@each
def test_two_classes_in_a_box(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    attack = made(case, 0.0, 1.0)
    gap = -difference(Outputs(x, x, model(x).detach()), Rows.of(y), False)
    exact = boxed_distance((model.weight[1 - y] - model.weight[y]).detach(), gap, x, attack.threat.norm.name)
    found = lengths(attack, model, x, y, rng)
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= 1.02 * exact).double().mean() >= CASES[case][3]


def test_fmn_changes_the_fewest_pixels(rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    gap = -difference(Outputs(x, x, model(x).detach()), Rows.of(y), False)
    exact = boxed_distance((model.weight[1 - y] - model.weight[y]).detach(), gap, x, "l0")
    found = lengths(FMN(threat=Threat(NORMS["l0"], inf), steps=300), model, x, y, rng)
    assert (found >= exact).all()
    assert (found == exact).double().mean() >= 0.9


@pytest.mark.parametrize("case", ["fmn-linf", "fmn-l2", "fmn-l1", "cw_l2"])
def test_the_nearest_of_five_classes(case: str, rng: Rng) -> None:
    """Often it is found; the gradient can lead to a class that is not the nearest, that of the cross entropy mostly."""
    model, x, y = problem(rng, 5)
    attack = made(case)
    exact = distances(model, x, y, attack.threat.norm.name).amin(1)
    found = lengths(attack, model, x, y, rng)
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= 1.02 * exact).double().mean() >= 0.6


@each
def test_targeted_ends_in_the_target_class(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 3)
    rows = Rows(y, torch.arange(N), {"target": (y + 1) % 3})
    attack = made(case, targeted=True)
    found = lengths(attack, model, x, rows, rng)
    assert found.isfinite().all()
    bound = distances(model, x, y, attack.threat.norm.name).gather(1, rows["target"][:, None]).squeeze(1)
    assert (found >= bound * (1 - 1e-9)).all()  # the target must beat the third class too
    assert (found <= 1.1 * bound).double().mean() >= 0.3


@each
def test_targets_are_checked(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 3)
    attack = made(case, targeted=True)
    with pytest.raises(ValueError, match="a targeted attack needs a class to reach for every sample"):
        attack(model, x, y, rng=rng)
    with pytest.raises(ValueError, match="targets are the true label"):
        attack(model, x, Rows(y, torch.arange(N), {"target": y}), rng=rng)


@each
def test_a_finite_eps_limits_the_search_but_not_the_successes_within_it(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    free = made(case)
    exact = distances(model, x, y, free.threat.norm.name).amin(1)
    eps = float(exact.median())
    found = lengths(free.at(eps), model, x, y, rng)
    assert found[exact < 0.98 * eps].isfinite().double().mean() >= CASES[case][3]
    assert (found <= 1.03 * exact)[exact < 0.95 * eps].double().mean() >= CASES[case][3] - 0.1
    assert (found == inf)[exact > eps * 1.00001].all()


@each
def test_the_judge_confirms_every_success(case: str, rng: Rng) -> None:
    """Points at the boundary are decided by the last digit, which depends on the size of the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIMS, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5)).eval()
    x = rng.uniform(torch.empty(N, DIMS))
    y = model(x).argmax(1)
    attack = replace(made(case, 0.0, 1.0), steps=40)
    x_adv = attack(model, x, y, rng=rng)
    claimed = succeeds(model(x_adv).detach(), Rows.of(y), False)
    assert claimed.double().mean() > 0.9
    assert judge(model, x, x_adv, y, attack.threat, rng).fooled[claimed].all()


def test_a_decision_within_rounding_is_no_success() -> None:
    logits, rows = torch.tensor([[1.0, 1.0 + 1e-6], [1.0, 1.1], [1.1, 1.0]]), Rows.of(torch.zeros(3, dtype=torch.int64))
    assert succeeds(logits, rows, False).tolist() == [False, True, False]
    assert succeeds(logits, rows, False, kappa=0.2).tolist() == [False, False, False]


@each
def test_misclassified_samples_stay_and_cost_one_gradient(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 3)
    meter = Meter()
    attack = made(case)
    assert torch.equal(attack(model, x, (y + 1) % 3, rng=rng, watch=meter), x)
    assert meter.cost == Cost(N, N)


class Faulty(nn.Module):
    """Returns NaN for inputs whose first number is exactly 0.5."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] == 0.5, torch.nan, self.model(x))


@each
def test_a_sample_without_finite_logits_does_not_harm_the_others(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    x[3, 0] = 0.5
    attack = replace(made(case), steps=20)
    others = torch.arange(N) != 3
    alone = attack(model, x[others], Rows(y[others], torch.arange(N)[others]), rng=rng)
    together = attack(Faulty(model), x, y, rng=rng)
    assert together.isfinite().all()
    torch.testing.assert_close(together[others], alone)


@each
def test_saturated_logits(case: str, rng: Rng) -> None:
    """In float32 the cross entropy of logits in the thousands has no gradient; a random direction takes its place."""
    model, x, y = problem(rng, 2)
    steep = Affine(1000 * model.weight.detach(), 1000 * model.bias.detach()).float()
    found = lengths(made(case), steep, x.float(), y, rng)
    assert found.isfinite().double().mean() > 0.9


@each
def test_half_precision_stays_inside(case: str, rng: Rng) -> None:
    model, x, y = problem(rng, 2)
    attack = replace(made(case, 0.0, 1.0), steps=20).at(0.25)
    for dtype in (torch.float16, torch.bfloat16):
        x_adv = attack(Affine(model.weight.detach(), model.bias.detach()).to(dtype), x.to(dtype), y, rng=rng)
        assert attack.threat.contains(x_adv, x.to(dtype)).all()


REFUSED = {
    "cw_linf is for linf but the threat is in l2; use pgd": lambda: CWLinf(threat=Threat(NORMS["l2"], 1)),
    "cw_l2 minimizes the l2 norm but the threat is in linf; use fmn": lambda: CWL2(threat=Threat(NORMS["linf"], 1)),
    "cw_linf_original minimizes the linf norm but the threat is in l2; use fmn": lambda: CWLinfOriginal(
        threat=Threat(NORMS["l2"], 1)
    ),
    "ddn rescales perturbations in l2 but the threat is in l1; use fmn": lambda: DDN(threat=Threat(NORMS["l1"], 1)),
    "has one end but the change of variables of cw_l2": lambda: made("cw_l2", low=0.0),
    "has one end but the change of variables of cw_linf_original": lambda: made("cw_linf_original", high=0.0),
    "c is 0 but it must be finite and above 0": lambda: replace(made("cw_l2"), c=0),
    "kappa -1 but": lambda: replace(made("cw_l2"), kappa=-1),
    "searches is 0": lambda: replace(made("cw_l2"), searches=0),
    "shrink is 1 but it must be between 0 and 1": lambda: replace(made("cw_linf_original"), shrink=1),
    "gamma is 1.5 but it must be between 0 and 1": lambda: replace(made("ddn"), gamma=1.5),
    "alpha is inf but it must be finite and above 0": lambda: replace(made("fmn-l2"), alpha=inf),
    "levels is 1 and the box": lambda: replace(made("ddn", 0.0, 1.0), levels=1),
    "levels is 256 and the box": lambda: replace(made("ddn"), levels=256),
}


@pytest.mark.parametrize("words", REFUSED)
def test_settings_that_cannot_work_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()
