"""FAB follows the reference implementation and reaches the closed-form distances of affine models."""

from dataclasses import replace
from math import inf

import pytest
import torch
from subjects import Affine, Counted
from torch import Tensor, nn

from holdfast.attacks._hyperplane import DUAL, shortest_to
from holdfast.attacks.fab import FAB
from holdfast.contracts import Cost, Keep, Meter, Rows
from holdfast.geometry import L0, L2, NORMS, LInf, Threat
from holdfast.rng import Rng

# every fifth coordinate of the iterates of pyautoattack 0.2.0 (FABAttack_PT.attack_single_run) in 6 steps on Waves:
# untargeted (0) and toward the second class (1)
REFERENCE = {
    ("linf", 0): [
        [0.85929, 0.00000, 0.33618, 0.09462, 0.16473, 0.94819, 0.00000, 1.00000, 0.07221],
        [0.86789, 0.01868, 0.30470, 0.09542, 0.16394, 0.94739, 0.07142, 0.95098, 0.13110],
        [0.86999, 0.01784, 0.30503, 0.09536, 0.16399, 0.94745, 0.08463, 0.95793, 0.18217],
        [0.89389, 0.01362, 0.30025, 0.09537, 0.16399, 0.94744, 0.10038, 0.97068, 0.25976],
        [0.91297, 0.01042, 0.29622, 0.09537, 0.16399, 0.94744, 0.09692, 0.98631, 0.32989],
        [0.92901, 0.00766, 0.29301, 0.09537, 0.16399, 0.94744, 0.09268, 0.99896, 0.34238],
    ],
    ("linf", 1): [
        [0.85929, 0.00000, 0.33618, 0.11429, 0.28803, 0.92852, 0.00000, 1.00000, 0.07221],
        [0.86789, 0.01868, 0.30470, 0.10489, 0.27863, 0.93791, 0.15776, 0.87586, 0.05548],
        [0.86999, 0.01784, 0.30503, 0.10489, 0.25653, 0.93792, 0.07215, 0.98607, 0.24460],
        [0.89389, 0.01362, 0.30025, 0.10469, 0.23877, 0.93812, 0.20341, 0.87486, 0.40821],
        [0.91297, 0.01042, 0.29622, 0.10452, 0.22414, 0.93829, 0.12972, 0.94526, 0.34830],
        [0.92901, 0.00766, 0.29301, 0.10437, 0.21209, 0.93844, 0.13609, 0.95196, 0.36776],
    ],
    ("l2", 0): [
        [0.96440, 0.00000, 0.35827, 0.10496, 0.19163, 0.96785, 0.00000, 1.00000, 0.21800],
        [0.95714, 0.02519, 0.32270, 0.10616, 0.19219, 0.96598, 0.22710, 0.87683, 0.23478],
        [0.95817, 0.02396, 0.32272, 0.10590, 0.19297, 0.96530, 0.22517, 0.89106, 0.27171],
        [0.96555, 0.01731, 0.31436, 0.10577, 0.19360, 0.96467, 0.22030, 0.92234, 0.28325],
        [0.97114, 0.01229, 0.30770, 0.10565, 0.19414, 0.96414, 0.21279, 0.95113, 0.29258],
        [0.97573, 0.00806, 0.30244, 0.10555, 0.19459, 0.96370, 0.20492, 0.97654, 0.29998],
    ],
    ("l2", 1): [
        [0.96440, 0.00000, 0.35827, 0.11043, 0.22998, 0.91621, 0.00000, 1.00000, 0.21800],
        [0.95714, 0.02519, 0.32270, 0.10182, 0.22822, 0.92694, 0.47287, 0.69818, 0.21114],
        [0.95817, 0.02396, 0.32272, 0.10326, 0.22536, 0.92894, 0.35995, 0.85278, 0.15348],
        [0.96555, 0.01731, 0.31436, 0.10433, 0.22295, 0.93077, 0.33902, 0.84314, 0.24217],
        [0.97114, 0.01229, 0.30770, 0.10524, 0.22089, 0.93235, 0.30089, 0.88467, 0.27566],
        [0.97573, 0.00806, 0.30244, 0.10601, 0.21911, 0.93371, 0.27071, 0.91821, 0.30223],
    ],
    ("l1", 0): [
        [0.97000, 0.03634, 0.22548, 0.04281, 0.21655, 1.00000, 0.20770, 1.00000, 0.55038],
        [0.97000, 0.22276, 0.22548, 0.04281, 0.21655, 1.00000, 0.54306, 1.00000, 0.55038],
        [0.97000, 0.21784, 0.22548, 0.04281, 0.21655, 1.00000, 0.49618, 1.00000, 0.55038],
        [0.97000, 0.18511, 0.22548, 0.04281, 0.21655, 1.00000, 0.44137, 1.00000, 0.55038],
        [0.97000, 0.15909, 0.22548, 0.04281, 0.21655, 1.00000, 0.39921, 1.00000, 0.55038],
        [0.97000, 0.13753, 0.22548, 0.04281, 0.21655, 1.00000, 0.37007, 1.00000, 0.55038],
    ],
    ("l1", 1): [
        [0.97000, 0.03634, 0.22548, 0.04281, 0.21655, 1.00000, 0.20770, 1.00000, 0.55038],
        [0.97000, 0.22276, 0.22548, 0.04281, 0.21655, 1.00000, 0.93462, 1.00000, 0.55038],
        [0.97000, 0.21784, 0.22548, 0.04281, 0.21655, 1.00000, 0.79650, 1.00000, 0.55038],
        [0.97000, 0.18511, 0.22548, 0.04281, 0.21655, 1.00000, 0.68463, 1.00000, 0.55038],
        [0.97000, 0.15909, 0.22548, 0.04281, 0.21655, 1.00000, 0.66503, 1.00000, 0.55038],
        [0.97000, 0.13753, 0.22548, 0.04281, 0.21655, 1.00000, 0.58469, 1.00000, 0.55038],
    ],
}


class Waves(nn.Module):
    """A network of two layers and four classes whose weights are sines and cosines, the same in every library."""

    def forward(self, x: Tensor) -> Tensor:
        first = torch.sin(1.7 * torch.arange(1, 105).double()).reshape(8, 13)[:, :12] * 1.5
        second = torch.cos(2.3 * torch.arange(1, 33).double()).reshape(4, 8) * 2
        return torch.tanh(x.flatten(1) @ first.to(x).T) @ second.to(x).T


@pytest.mark.parametrize(("norm", "targets"), REFERENCE)
def test_iterates_are_those_of_the_reference(norm: str, targets: int, rng: Rng) -> None:
    x = (0.5 + 0.6 * torch.sin(0.9 * torch.arange(1, 37).double())).clamp(0, 1).reshape(3, 1, 3, 4).float()
    checked: list[Tensor] = []

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        if not cost.backwards:
            checked.append(x_adv.flatten(1)[:, ::5].flatten())

    attack = FAB(threat=Threat(NORMS[norm], inf), steps=6, targets=targets)
    attack(Waves(), x, Waves()(x).argmax(1), rng=rng, watch=watch)
    torch.testing.assert_close(torch.stack(checked[1:]), torch.tensor(REFERENCE[norm, targets]), atol=3e-5, rtol=0)


def affine(rng: Rng, classes: int, d: int = 24, n: int = 40) -> tuple[Affine, Tensor, Tensor]:
    model = Affine(
        rng.fork("weight").normal(torch.empty(classes, d, dtype=torch.float64)),
        0.3 * rng.fork("bias").normal(torch.empty(classes, dtype=torch.float64)),
    )
    x = rng.fork("x").uniform(torch.empty(n, d, dtype=torch.float64)).mul(1.4).sub(0.2).clamp(0, 1)
    return model, x, model(x).argmax(1)


def distances(model: Affine, x: Tensor, y: Tensor, low: float, high: float, norm: str) -> Tensor:
    """The exact (n, classes) distances at which another class overtakes the label; inf where none can, and at y."""
    z = model(x).detach()
    found = []
    for k in range(z.shape[1]):
        slope = (model.weight[k] - model.weight[y]).detach()
        value = z[:, k] - z.gather(1, y[:, None])[:, 0]
        step = shortest_to(x, slope, value, low, high, norm)
        possible = ((value + (slope * step).sum(1)).abs() < 1e-9) & (y != k)
        found.append(torch.where(possible, NORMS[norm].length(step), inf))
    return torch.stack(found, 1)


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("box", [(0.0, 1.0), (-inf, inf)])
@pytest.mark.parametrize(("classes", "targets"), [(2, 1), (2, 0), (5, 0), (5, None)])
def test_affine_models_are_left_within_two_percent_of_the_exact_distance(
    norm: str, box: tuple[float, float], classes: int, targets: int | None, rng: Rng
) -> None:
    model, x, y = affine(rng, classes)
    exact = distances(model, x, y, *box, norm).amin(1)
    threat = Threat(NORMS[norm], inf, *box)
    x_adv = FAB(threat=threat, steps=30, targets=targets)(model, x, y, rng=rng)
    reachable = exact < inf
    assert reachable.sum() > 30
    ratio = (threat.norm.length(x_adv - x) / exact)[reachable]
    assert (model(x_adv).argmax(1) != y)[reachable].all()
    assert ratio.min() >= 1 - 1e-9
    # the untargeted form compares the distances of boundaries without the box, so that it may choose another one
    assert (ratio <= 1.02).double().mean() >= (0.9 if (classes, targets) == (5, 0) else 1)


@pytest.mark.parametrize("norm", DUAL)
def test_a_given_target_is_reached(norm: str, rng: Rng) -> None:
    model, x, y = affine(rng, 4)
    target = (y + 1) % 4
    threat = Threat(NORMS[norm], inf, -inf, inf)
    rows = Rows(y, torch.arange(len(y)), {"target": target})
    x_adv = FAB(threat=threat, steps=100, targeted=True)(model, x, rows, rng=rng)
    assert (model(x_adv).argmax(1) == target).all()
    least = distances(model, x, y, -inf, inf, norm).gather(1, target[:, None])[:, 0]
    ratio = threat.norm.length(x_adv - x) / least  # other classes may be in the way, so this is a lower bound
    assert ratio.min() >= 1 - 1e-9
    assert ratio.median() <= 1.02


@pytest.mark.parametrize("norm", DUAL)
def test_stopping_at_eps_breaks_the_same_samples_for_less(norm: str, rng: Rng) -> None:
    model, x, y = affine(rng, 5)
    eps = float(distances(model, x, y, 0.0, 1.0, norm).amin(1).median()) * 1.03
    whole, stopping = (FAB(threat=Threat(NORMS[norm], eps), steps=30, keep=keep) for keep in ("closest", "fooled"))
    meters = Meter(), Meter()
    first, second = (a(model, x, y, rng=rng, watch=m) for a, m in zip((whole, stopping), meters, strict=True))
    broken = model(first).argmax(1) != y
    assert 0 < broken.sum() < len(y)
    assert torch.equal(first[~broken], x[~broken])
    assert torch.equal(model(second).argmax(1) != y, broken)
    assert stopping.threat.contains(second, x).all()
    lengths = [NORMS[norm].length(x_adv - x) for x_adv in (first, second)]
    assert (lengths[0] <= lengths[1] + 1e-12).all()
    assert meters[1].cost.backwards < 0.7 * meters[0].cost.backwards


def test_restarts_never_lengthen_and_depend_on_the_sample(rng: Rng) -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4)).double()
    for number, p in enumerate(model.parameters()):
        p.data = 2 * rng.fork(number).normal(p.data)
    x = rng.fork("x").uniform(torch.empty(30, 6, dtype=torch.float64))
    y = model(x).argmax(1)
    once = FAB(threat=Threat(L2(), inf), steps=10, targets=1)
    thrice = replace(once, restarts=3)
    short, shorter = (L2().length(a(model, x, y, rng=rng) - x) for a in (once, thrice))
    assert (shorter <= short).all()
    assert (shorter < 0.99 * short).any()
    rows = Rows(y, torch.arange(30))
    part = torch.tensor([7, 3])
    alone = thrice(model, x[part], rows.take(part), rng=rng)
    torch.testing.assert_close(alone, thrice(model, x, rows, rng=rng)[part], atol=1e-9, rtol=0)


def test_a_step_toward_a_class_costs_two_forwards_and_one_backward(rng: Rng) -> None:
    model, x, y = affine(rng, 5)
    counted = Counted(model)
    FAB(threat=Threat(LInf(), inf), steps=7, targets=2)(counted, x, y, rng=rng)
    assert counted.cost == Cost(len(x) * (1 + 2 * 7 * 2), len(x) * 2 * 7)
    counted = Counted(model)
    FAB(threat=Threat(LInf(), inf), steps=7, targets=0)(counted, x, y, rng=rng)
    assert counted.cost == Cost(len(x) * (1 + 2 * 7), len(x) * 4 * 7)


def test_not_a_number_harms_no_other_sample(rng: Rng) -> None:
    class Broken(Affine):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1] == x0, torch.nan, super().forward(x))

    model, x, y = affine(rng, 3)
    x0, broken = x[4, 0].clone(), Broken(model.weight.data, model.bias.data)
    y[4] = 0  # the place of the first NaN, so that the sample seems right
    attack = FAB(threat=Threat(LInf(), inf), steps=20)
    x_adv = attack(broken, x, y, rng=rng)
    assert x_adv.isfinite().all()
    others = torch.arange(len(x)) != 4
    torch.testing.assert_close(x_adv[others], attack(model, x, y, rng=rng)[others])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threat": Threat(L0(), 2)}, "fab has no form for the norm l0; give it a threat in linf or l2 or l1"),
        ({"keep": "last"}, 'keep is "last" but fab looks for short perturbations'),
        ({"restarts": 0}, "steps is 100 and restarts 0 but an attack needs at least one of each"),
        ({"eta": 0.9}, r"eta is 0\.9 but it must be in \[1, 2\]"),
        ({"beta": 1.1}, r"beta is 1\.1 but it must be in \[0, 1\]"),
        ({"alpha_max": -1}, r"alpha_max is -1 but it must be in \[0, 1\]"),
        ({"targets": -1}, r"targets is -1 but it must be in"),
        ({"targets": 3, "targeted": True}, "leave out the number of targets"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FAB(**{"threat": Threat(LInf(), 0.1), **settings})


def test_more_targets_than_wrong_classes_are_refused(rng: Rng) -> None:
    model, x, y = affine(rng, 3)
    with pytest.raises(ValueError, match="targets is 3 but the model has 3 classes, so there are 2 wrong ones"):
        FAB(threat=Threat(LInf(), 0.1), targets=3)(model, x, y, rng=rng)
    with pytest.raises(ValueError, match="40 targets are the true label"):
        FAB(threat=Threat(LInf(), 0.1), targeted=True)(model, x, Rows(y, torch.arange(40), {"target": y}), rng=rng)


@pytest.mark.parametrize("keep", ["fooled", "closest"])
@pytest.mark.parametrize("few", [0, 1000])
def test_aims_at_once_give_what_they_give_one_after_the_other(
    keep: Keep, few: int, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference stops at the first class, in the order of their logits, that has a success."""
    net = Waves()
    x = rng.fork("x").uniform(torch.empty(40, 12, dtype=torch.float64))
    y = net(x).argmax(1)
    rivals = net(x).scatter(1, y[:, None], -inf).argsort(1, descending=True)[:, :3]
    attack = FAB(threat=Threat(LInf(), 0.05), steps=6, targets=3, keep=keep)
    expected, length = x.clone(), torch.full((40,), inf, dtype=torch.float64)
    for rank in range(3):
        one = replace(attack, targets=1)
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.attacks.fab.aims", lambda *_, rank=rank: (rivals[:, rank : rank + 1],))
            found = one(net, x, y, rng=rng)
        far = torch.where(net(found).argmax(1) != y, (found - x).abs().amax(1), inf)
        better = (far < length) & ((length == inf) | (keep == "closest"))
        expected[better], length[better] = found[better], far[better]
    monkeypatch.setattr("holdfast.attacks.fab.FEW", few)
    torch.testing.assert_close(attack(net, x, y, rng=rng), expected, rtol=0, atol=1e-6)
    assert 3 < int((length < inf).sum()) < 37
