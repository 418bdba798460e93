"""MultiTargeted against a plain loop over samples and classes."""

from math import cos, pi

import pytest
import torch
from subjects import Net, samples
from torch import Tensor

from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.contracts import Cost, Rows
from holdfast.geometry import LInf, Threat
from holdfast.rng import Rng

EPS = 0.03


@pytest.fixture
def net() -> Net:
    return Net().double().eval()


def by_hand(net: Net, x: Tensor, y: int, sizes: list[float]) -> tuple[Tensor, int]:
    """The first misclassified iterate, or the last one, of sign steps from x on z_t - z_y; and the evaluations."""
    order = [t for t in net(x[None])[0].argsort(descending=True).tolist() if t != y]
    evaluations = 0
    for target in order:
        x_adv = x.clone()
        for size in [*sizes, 0.0]:
            evaluations += 1
            z = net(x_adv.requires_grad_()[None])[0]
            (grad,) = torch.autograd.grad(z[target] - z[y], x_adv)
            x_adv = x_adv.detach()
            if z.argmax() != y:
                return x_adv, evaluations
            x_adv = torch.minimum(torch.maximum(x_adv + size * grad.sign(), x - EPS), x + EPS).clamp(0, 1)
    return x_adv, evaluations


@pytest.mark.parametrize("decay", [False, True])
def test_equals_a_loop_over_samples_and_classes(decay: bool, net: Net, rng: Rng) -> None:
    x, rows = samples(25, rng, net)
    attack = MultiTargeted(threat=Threat(LInf(), EPS), steps=4, start="clean", decay=decay)
    sizes = [EPS * (1 + cos(pi * t / 4)) for t in range(4)] if decay else [2.5 * EPS / 4] * 4
    costs: list[Cost] = []
    found = attack(net, x, rows, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    expected = [by_hand(net, x[i], int(rows.y[i]), sizes) for i in range(25)]
    torch.testing.assert_close(found, torch.stack([point for point, _ in expected]))
    evaluations = sum(count for _, count in expected)
    assert sum(costs, Cost()) == Cost(forwards=25 + evaluations, backwards=evaluations)
    held = net(found).argmax(1) == rows.y
    assert 3 < held.sum() < 22  # both cases occur


def test_all_classes_find_at_least_what_the_most_likely_one_finds(net: Net, rng: Rng) -> None:
    x, rows = samples(60, rng, net)
    held = []
    for targets in (1, 2, None):
        attack = MultiTargeted(threat=Threat(LInf(), 0.02), steps=3, targets=targets)
        held.append(net(attack(net, x, rows, rng=rng)).argmax(1) == rows.y)
    assert not (held[1] & ~held[0]).any()
    assert torch.equal(held[1], held[2])  # three classes have two wrong ones


def test_the_true_class_is_never_a_target_also_if_the_model_errs(net: Net, rng: Rng) -> None:
    x, rows = samples(20, rng, net)
    wrong = Rows((rows.y + 1) % 3, rows.index)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        assert not cost.backwards or (rows["target"] != rows.y).all()

    MultiTargeted(threat=Threat(LInf(), EPS), steps=2, keep="worst")(net, x, wrong, rng=rng, watch=watch)


def test_impossible_numbers_of_targets_are_refused(net: Net, rng: Rng) -> None:
    x, rows = samples(2, rng, net)
    threat = Threat(LInf(), EPS)
    with pytest.raises(ValueError, match="targets is 3 but a model with 3 classes has 2 wrong ones"):
        MultiTargeted(threat=threat, targets=3)(net, x, rows, rng=rng)
    with pytest.raises(ValueError, match="targets is 0 but an attack needs at least one class to aim at"):
        MultiTargeted(threat=threat, targets=0)
