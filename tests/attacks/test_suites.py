"""AutoAttack and triage: their stages, what they find on models with a known answer, and masked gradients."""

from dataclasses import replace
from math import inf

import pytest
import torch
from subjects import Affine
from torch import Tensor, nn

from holdfast.attacks._cascade import CascadeAttack
from holdfast.attacks.apgd import APGD
from holdfast.attacks.autoattack import AutoAttack, Version
from holdfast.attacks.eot import EOT
from holdfast.attacks.fab import FAB
from holdfast.attacks.square import Square
from holdfast.attacks.triage import Triage
from holdfast.contracts import Cost, Meter, Rows
from holdfast.geometry import L0, L1, L2, LInf, Norm, Threat
from holdfast.losses.classification import dlr, logit_difference, targeted_dlr, targeted_logit_difference
from holdfast.rng import Rng

LINF = Threat(LInf(), 0.1)


def names(attack: CascadeAttack, classes: int = 10) -> list[str]:
    return [stage.name for stage in attack.stages(classes)]


def test_the_versions_of_autoattack_have_their_published_stages() -> None:
    assert names(AutoAttack(threat=LINF)) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert names(AutoAttack(threat=LINF, version="plus")) == [
        *("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    ]
    assert names(AutoAttack(threat=LINF, version="rand")) == ["apgd-ce", "apgd-dlr"]


@pytest.mark.parametrize(("norm", "restarts", "targets"), [(LInf(), 1, 9), (L2(), 1, 9), (L1(), 5, 5)])
def test_the_standard_suite_has_its_published_settings(norm: Norm, restarts: int, targets: int) -> None:
    ce, t, fab, square = (stage.attack for stage in AutoAttack(threat=Threat(norm, 0.5)).stages(10))
    assert isinstance(ce, APGD)
    assert (ce.steps, ce.restarts) == (100, restarts)
    assert isinstance(t, APGD)
    assert (t.steps, t.restarts, t.targets, t.loss) == (100, 1, targets, targeted_dlr)
    assert isinstance(fab, FAB)
    assert (fab.steps, fab.restarts, fab.targets) == (100, 1, 9)
    assert isinstance(square, Square)
    assert square.queries == 5000


def test_plus_restarts_apgd_and_untargeted_fab_five_times() -> None:
    stages = {stage.name: stage.attack for stage in AutoAttack(threat=LINF, version="plus").stages(10)}
    restarts = {name: attack.restarts for name, attack in stages.items() if isinstance(attack, APGD | FAB)}
    assert restarts == {"apgd-ce": 5, "apgd-dlr": 5, "fab": 5, "apgd-t": 1, "fab-t": 1}
    assert isinstance(stages["fab"], FAB)
    assert stages["fab"].targets == 0


@pytest.mark.parametrize(("version", "restarts"), [("plus", 5), ("rand", 1)])
def test_in_l1_only_the_standard_suite_has_settings_of_its_own(version: Version, restarts: int) -> None:
    for stage in AutoAttack(threat=Threat(L1(), 5), version=version).stages(10):
        attack = stage.attack.attack if isinstance(stage.attack, EOT) else stage.attack
        if isinstance(attack, APGD):
            assert (attack.restarts, attack.targets) == (1 if stage.name == "apgd-t" else restarts, 9)


def test_rand_averages_gradients_over_twenty_draws() -> None:
    for stage in AutoAttack(threat=LINF, version="rand").stages(10):
        assert isinstance(stage.attack, EOT)
        assert stage.attack.draws == 20


@pytest.mark.parametrize(("classes", "dlr_loss", "targeted_loss"), [
    (2, logit_difference, targeted_logit_difference),
    (3, dlr, targeted_logit_difference),
    (4, dlr, targeted_dlr),
])  # fmt: skip
def test_with_few_classes_the_logit_difference_replaces_dlr_and_the_name_says_so(
    classes: int, dlr_loss: object, targeted_loss: object
) -> None:
    stages = {stage.name: stage.attack for stage in AutoAttack(threat=LINF, version="plus").stages(classes)}
    for name, loss, published in (("apgd-dlr", dlr_loss, dlr), ("apgd-t", targeted_loss, targeted_dlr)):
        (full,) = [stage for stage in stages if stage.startswith(name)]
        assert ("instead of DLR" in full) == (loss is not published)
        attack = stages[full]
        assert isinstance(attack, APGD)
        assert attack.loss is loss
        assert attack.targets == classes - 1 or name == "apgd-dlr"


@pytest.mark.parametrize("suite", [AutoAttack, Triage])
def test_settings_that_cannot_work_are_refused(suite: type[AutoAttack]) -> None:
    with pytest.raises(ValueError, match=f"{suite.__name__.lower()} has no form for the norm l0"):
        suite(threat=Threat(L0(), 3))
    with pytest.raises(ValueError, match="eps is inf"):
        suite(threat=Threat(LInf(), inf))


def test_unknown_versions_and_small_budgets_are_refused() -> None:
    with pytest.raises(ValueError, match="version is 'full' but it must be one of standard, plus, rand"):
        AutoAttack(threat=LINF, version="full")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws is 0"):
        AutoAttack(threat=LINF, version="rand", draws=0)
    with pytest.raises(ValueError, match="budget is 3 but the first stage alone takes 5 gradients"):
        Triage(threat=LINF, budget=3)


def test_a_budget_leaves_out_the_stages_that_exceed_it() -> None:
    whole, small = names(Triage(threat=LINF)), names(Triage(threat=LINF, budget=60))
    assert small == ["margin", "pma", "fab", "square 1000", "square 2500", "square 5000"]
    assert set(small) < set(whole)


@pytest.mark.parametrize("norm", [LInf(), L1()], ids=lambda norm: norm.name)
@pytest.mark.parametrize("budget", [55, 60, 110, 200])
def test_samples_that_are_never_fooled_cost_no_more_than_the_budget(norm: Norm, budget: int) -> None:
    rng, meter = Rng(2), Meter()
    model = Affine(torch.eye(10), torch.zeros(10))
    y = torch.arange(10).repeat(20)
    x = 0.9 * torch.eye(10)[y] + 0.05 * rng.uniform(torch.empty(200, 10))
    x_adv = Triage(threat=Threat(norm, 1e-3), budget=budget)(model, x, y, rng=rng, watch=meter)
    assert (model(x_adv).argmax(1) == y).all()
    assert 0.4 * budget < meter.cost.backwards / 200 <= budget


def affine(classes: int, norm: Norm) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model, samples with their labels, and the distance of each to the nearest other class."""
    rng = Rng(7)
    weight = rng.fork("w").normal(torch.empty(classes, 12, dtype=torch.float64))
    x = rng.fork("x").normal(torch.empty(60, 12, dtype=torch.float64))
    z = x @ weight.T
    y = z.argmax(1)
    dual = {"linf": 1, "l2": 2, "l1": inf}[norm.name]
    lengths = torch.linalg.vector_norm(weight[y][:, None] - weight[None], ord=dual, dim=2)
    gap = (z.gather(1, y[:, None]) - z) / lengths.masked_fill(lengths == 0, 1)
    gap[torch.arange(60), y] = inf
    return Affine(weight, torch.zeros(classes, dtype=torch.float64)), x, y, gap.amin(1)


# AutoAttack with fewer cases: its 5000 queries take seconds
@pytest.mark.parametrize(("suite", "classes"), [(AutoAttack, 3), (Triage, 2), (Triage, 3), (Triage, 6)])
@pytest.mark.parametrize("norm", [LInf(), L2(), L1()], ids=lambda norm: norm.name)
def test_finds_exactly_the_samples_whose_boundary_is_within_eps(
    suite: type[AutoAttack], norm: Norm, classes: int
) -> None:
    model, x, y, distance = affine(classes, norm)
    eps = float(distance.median())
    x_adv = suite(threat=Threat(norm, eps, -inf, inf))(model, x, y, rng=Rng(0))
    fooled = model(x_adv).argmax(1) != y
    assert not fooled[distance > eps * (1 + 1e-6)].any()
    assert fooled[distance < eps * 0.98].all()


def largest_gain(slope: Tensor, x: Tensor, eps: float) -> Tensor:
    """The most that a linear function grows within eps in l1 and the box [0, 1]: its steepest coordinates first."""
    steepness, order = slope.abs().sort(-1, descending=True)
    room = torch.where(slope > 0, 1 - x, x).gather(-1, order)
    moved = torch.minimum(room, (eps - (room.cumsum(-1) - room)).clamp_min(0))
    return (moved * steepness).sum(-1)


def test_triage_in_l1_finds_every_adversarial_example_within_the_box() -> None:
    rng, samples = Rng(5), torch.arange(60)
    weight, x = rng.fork("w").normal(torch.empty(4, 100)), rng.fork("x").uniform(torch.empty(60, 100))
    model = Affine(weight, -weight.sum(1) / 2)
    z = model(x)
    y = z.argmax(1)
    gain = largest_gain(weight - weight[y][:, None], x[:, None].expand(-1, 4, -1), eps=1.0)
    margin = (gain + z - z[samples, y, None]).index_put((samples, y), torch.tensor(-inf)).amax(1)
    found = model(Triage(threat=Threat(L1(), 1.0))(model, x, y, rng=Rng(0))).argmax(1) != y
    assert found.tolist() == (margin > 1e-3).tolist()
    assert 0 < found.sum() < 60


class Steps(nn.Module):
    """A linear model of inputs that are rounded to eighths: the gradient is zero everywhere."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (8 * x.flatten(1)).round() / 8 @ self.weight.T


@pytest.mark.parametrize("suite", [AutoAttack, Triage])
def test_masked_gradients_are_noticed_by_queries(suite: type[AutoAttack]) -> None:
    rng = Rng(3)
    model = Steps(rng.fork("w").normal(torch.empty(4, 36)))
    x = rng.fork("x").uniform(torch.empty(30, 1, 6, 6))
    y = model(x).argmax(1)
    attack = suite(threat=Threat(LInf(), 0.2))
    found = model(attack(model, x, y, rng=Rng(0))).argmax(1) != y
    assert found.double().mean() > 0.7


def test_square_ends_with_a_tenth_of_the_samples_if_it_fools_none() -> None:
    model, x, y, distance = affine(4, LInf())
    far = distance > 0.05
    meter, single = Meter(), Cost()
    Triage(threat=Threat(LInf(), 0.01, -inf, inf))(model, x[far], y[far], rng=Rng(0), watch=meter)
    single = meter.cost
    assert single.forwards < len(y[far]) * 700  # 1000 queries on a tenth of the samples
    assert single.backwards < len(y[far]) * 300


def test_every_stage_starts_from_the_clean_samples_that_still_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[int], bool]] = []
    model, x, y, distance = affine(6, LInf())

    def recording(name: str, cls: type) -> None:
        original = cls.__call__

        def call(self: object, model: nn.Module, given: Tensor, rows: Rows, **more: object) -> Tensor:
            seen.append((name, rows.index.tolist(), torch.equal(given, x[rows.index])))
            result: Tensor = original(self, model, given, rows, **more)
            return result

        monkeypatch.setattr(cls, "__call__", call)

    for name, cls in (("apgd", APGD), ("fab", FAB), ("square", Square)):
        recording(name, cls)
    attack = AutoAttack(threat=Threat(LInf(), float(distance.median()), -inf, inf))
    attack(model, x, Rows(y, torch.arange(60)), rng=Rng(0))
    assert [name for name, _, _ in seen] == ["apgd", "apgd", "fab", "square"]
    assert all(clean for _, _, clean in seen)
    sizes = [len(index) for _, index, _ in seen]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 60 > sizes[-1]


def test_another_eps() -> None:
    assert replace(AutoAttack(threat=LINF), version="plus").at(0.3).threat.eps == 0.3
