"""Targeted forms: success is exactly the class that the rows name."""

import dataclasses
from functools import partial

import pytest
import torch
from subjects import EPS, MEMBERS, NORMS_OF, Net, build, member, samples

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Attack, Outputs, Rows
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.losses.classification import logit_difference, targeted_cross_entropy
from holdfast.rng import Rng

TARGETED = [name for name in MEMBERS if "targeted" in {field.name for field in dataclasses.fields(member(name))}]
targeted_members = pytest.mark.parametrize("name", TARGETED)


def made(name: str, **changes: object) -> Attack:
    norm = NORMS_OF[name][0]
    attack = build(name, Threat(NORMS[norm], EPS[norm]))
    return dataclasses.replace(attack, targeted=True, **changes)  # type: ignore[type-var]


@pytest.fixture
def net() -> Net:
    return Net().double().eval()


def test_the_gradient_attacks_have_a_targeted_form() -> None:
    assert {"pgd", "bim", "mim", "fgsm", "apgd", "pma"} <= set(TARGETED)


@targeted_members
def test_each_target_is_reached_more_often_than_without_aiming(name: str, net: Net, rng: Rng) -> None:
    x, rows = samples(40, rng, net)
    reached = {}
    for step in (1, 2):
        target = (rows.y + step) % 3
        given = Rows(rows.y, rows.index, {"target": target})
        aimed = made(name).at(0.2)
        reached[step] = (net(aimed(net, x, given, rng=rng)).argmax(1) == target).sum()
        free = dataclasses.replace(aimed, targeted=False)  # type: ignore[type-var]
        unaimed = (net(free(net, x, rows, rng=rng)).argmax(1) == target).sum()
        short = aimed.minimal or aimed.black_box  # these need more than the few steps of this test
        assert reached[step] >= unaimed if short else reached[step] > unaimed
    assert short or min(reached.values()) > 25


@targeted_members
def test_missing_and_true_targets_are_refused(name: str, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    with pytest.raises(ValueError, match=r"a targeted attack needs a class to reach for every sample; pass Rows\("):
        made(name)(net, x, rows, rng=rng)
    with pytest.raises(ValueError, match="4 targets are the true label"):
        made(name)(net, x, Rows(rows.y, rows.index, {"target": rows.y}), rng=rng)
    with pytest.raises(ValueError, match=r"targets span 3\.\.3 but the model has classes 0\.\.2"):
        made(name)(net, x, Rows(rows.y, rows.index, {"target": torch.full((4,), 3)}), rng=rng)


def test_another_wrong_class_does_not_end_the_attack(net: Net, rng: Rng) -> None:
    x, rows = samples(40, rng, net)
    label = net(x).argmax(1)
    rows = Rows((label + 1) % 3, rows.index, {"target": (label + 2) % 3})  # misclassified from the start
    attack = PGD(threat=Threat(LInf(), 0.3), steps=20, targeted=True)
    assert (net(attack(net, x, rows, rng=rng)).argmax(1) == rows["target"]).double().mean() > 0.9


def test_minimizes_the_loss_of_the_target(net: Net, rng: Rng) -> None:
    x, rows = samples(10, rng, net)
    given = Rows(rows.y, rows.index, {"target": (rows.y + 1) % 3})
    last = partial(PGD, threat=Threat(LInf(), 0.05), steps=3, keep="last")
    expected = last(loss=targeted_cross_entropy)(net, x, given, rng=rng)
    assert torch.equal(last(targeted=True)(net, x, given, rng=rng), expected)
    assert torch.equal(last(targeted=True, loss=targeted_cross_entropy)(net, x, given, rng=rng), expected)
    difference = last(targeted=True, loss=logit_difference)(net, x, given, rng=rng)
    before, after = (
        -logit_difference(Outputs(p, p, net(p)), Rows(given["target"], given.index)) for p in (x, difference)
    )
    assert (after > before).all()
