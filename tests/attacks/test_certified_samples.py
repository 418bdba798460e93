"""No attack of the folder breaks a sample that is certified: trained models of the zoo, by CROWN, in linf and l2."""

import dataclasses
from functools import cache

import pytest
import torch
from subjects import MEMBERS, NORMS_OF, member
from torch import Tensor, nn

import holdfast
from holdfast import data
from holdfast.attacks.pgd import PGD
from holdfast.certify.crown import CROWN
from holdfast.contracts import Rows
from holdfast.geometry import NORMS, Threat
from holdfast.rng import Rng

RADII = {"digits-tla": {"linf": 0.03, "l2": 0.15}, "mnist-mlp-tla": {"linf": 0.1, "l2": 0.25}}
CASES = [(name, norm) for name in MEMBERS for norm in NORMS_OF[name] if norm in ("linf", "l2")]


@cache
def certified(zoo: str, norm: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, and the test samples that are certified at the radius with their labels."""
    model = holdfast.load_model(zoo).eval()
    try:
        test = data.load_test(holdfast.zoo.card(zoo).data, samples=12).test
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    x = test.batch(torch.arange(12)).x
    found = CROWN(model=model, norm=NORMS[norm], radii=(RADII[zoo][norm],))(x, rng=Rng(0))
    sure = found.radius > 0
    return model, x[sure], found.label[sure]


@pytest.mark.parametrize("zoo", RADII)
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_no_attack_breaks_a_certified_sample(zoo: str, name: str, norm: str, rng: Rng) -> None:
    model, x, label = certified(zoo, norm)
    assert len(x) >= 6
    threat = Threat(NORMS[norm], RADII[zoo][norm])
    inner = PGD(threat=threat, steps=20, keep="last")
    given = {"threat": threat, "attack": inner, "source": model, "steps": 20, "queries": 100}
    cls = member(name)
    attack = cls(**{field.name: given[field.name] for field in dataclasses.fields(cls) if field.name in given})
    x_adv = attack(model, x, Rows.of(label), rng=rng)
    inside = threat.contains(x_adv, x)
    with torch.no_grad():
        assert torch.equal(model(x_adv).argmax(1)[inside], label[inside])
