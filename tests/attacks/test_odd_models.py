"""Gradient attacks on odd inputs and models: whatever happens, results are inside the threat and finite."""

from functools import partial
from math import inf, prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.attacks.apgd import APGD
from holdfast.attacks.cw_l2 import CWL2
from holdfast.attacks.cw_linf_original import CWLinfOriginal
from holdfast.attacks.ddn import DDN
from holdfast.attacks.deepfool import DeepFool
from holdfast.attacks.fab import FAB
from holdfast.attacks.fmn import FMN
from holdfast.attacks.hopskipjump import HopSkipJump
from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.attacks.pgd import PGD
from holdfast.attacks.pma import PMA
from holdfast.attacks.rays import RayS
from holdfast.attacks.square import Square
from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack, Rows
from holdfast.evaluation.judge import judge
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.losses.classification import dlr, logit_difference, targeted_dlr
from holdfast.rng import Rng

ATTACKS: dict[str, Any] = {
    "pgd": PGD,
    "apgd": APGD,
    "apgd-dlr": partial(APGD, loss=dlr),
    "apgd-t": partial(APGD, loss=targeted_dlr, targets=1),
    "apgd-worst": partial(APGD, loss=logit_difference, keep="worst", restarts=2),
    "multi_targeted": partial(MultiTargeted, targets=1, decay=True),
    "pma": PMA,
    "pma-published": partial(PMA, rescale=False),
}
CLASSES = {"apgd-dlr": 3, "apgd-t": 4}
OTHERS: dict[str, tuple[Any, tuple[str, ...]]] = {  # minimal-norm and black-box attacks and cascades, with their norms
    "fab": (partial(FAB, steps=3), ("linf", "l2", "l1")),
    "fab-t": (partial(FAB, steps=3, targets=1, keep="fooled"), ("linf", "l2", "l1")),
    "deepfool": (partial(DeepFool, steps=4), ("linf", "l2")),
    "cw_l2": (partial(CWL2, steps=4, searches=2), ("l2",)),
    "cw_linf_original": (partial(CWLinfOriginal, steps=4, largest_c=1e-3), ("linf",)),
    "ddn": (partial(DDN, steps=5), ("l2",)),
    "fmn": (partial(FMN, steps=5), ("linf", "l2", "l1")),
    "square": (partial(Square, queries=12), ("linf", "l2", "l1")),
    "rays": (partial(RayS, queries=20), ("linf",)),
    "hopskipjump": (partial(HopSkipJump, queries=60), ("linf", "l2")),
    "triage": (partial(Triage, budget=60), ("linf", "l2", "l1")),
}


class Scaled(nn.Module):
    """A linear model on flattened inputs whose logits are multiplied by ``scale``."""

    def __init__(self, numbers: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(Rng(classes).normal(torch.empty(classes, numbers)))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x - 0.5).flatten(1) @ self.weight.T


def images(kind: str, n: int, shape: tuple[int, ...], rng: Rng) -> Tensor:
    """Random, constant or equal images, or corners of the box."""
    x = rng.uniform(torch.empty(n, *shape))
    equal = x[:1].repeat(n, *[1] * len(shape))
    return {"random": x, "constant": torch.full_like(x, 0.25), "duplicated": equal}.get(kind, x.round())


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(ATTACKS)),
    norm=st.sampled_from(["linf", "l2", "l1"]),
    eps=st.sampled_from([0.0, 1e-4, 0.3, 5.0]),
    shape=st.sampled_from([(5,), (1, 4, 4), (3, 2, 5)]),
    classes=st.sampled_from([2, 3, 4, 10, 200]),
    scale=st.sampled_from([0.0, 1.0, 1000.0]),
    kind=st.sampled_from(["random", "constant", "duplicated", "corners"]),
    steps=st.integers(1, 12),
)
def test_results_are_in_the_threat(
    name: str, norm: str, eps: float, shape: tuple[int, ...], classes: int, scale: float, kind: str, steps: int
) -> None:
    rng, classes = Rng(steps), max(classes, CLASSES.get(name, 2))
    x = images(kind, 6, shape, rng)
    model, threat = Scaled(x[0].numel(), classes, scale), Threat(NORMS[norm], eps)
    y = model(x).argmax(1)
    x_adv = ATTACKS[name](threat=threat, steps=steps)(model, x, y, rng=rng)
    assert threat.contains(x_adv, x).all()
    if eps == 0:
        assert torch.equal(x_adv, x)


@settings(max_examples=60, deadline=None)
@given(
    attack=st.sampled_from([(name, norm) for name, (_, norms) in sorted(OTHERS.items()) for norm in norms]),
    eps=st.sampled_from([0.0, 1e-4, 0.3, 5.0, inf]),
    shape=st.sampled_from([(5,), (1, 4, 4), (3, 2, 5)]),
    classes=st.sampled_from([2, 3, 10, 200]),
    scale=st.sampled_from([0.0, 1.0, 1000.0]),
    kind=st.sampled_from(["random", "constant", "duplicated", "corners"]),
)
def test_other_attacks_stay_in_the_threat(
    attack: tuple[str, str], eps: float, shape: tuple[int, ...], classes: int, scale: float, kind: str
) -> None:
    name, norm = attack
    if eps == inf and name in ("square", "triage"):  # they refuse it
        eps = 1.0
    x, model, threat = images(kind, 3, shape, Rng(0)), Scaled(prod(shape), classes, scale), Threat(NORMS[norm], eps)
    y = model(x).argmax(1)
    x_adv = OTHERS[name][0](threat=threat)(model, x, y, rng=Rng(0))
    assert threat.contains(x_adv, x).all()
    if eps == 0:
        assert torch.equal(x_adv, x)


@pytest.mark.parametrize(("name", "norm"), [(name, norm) for name, (_, norms) in OTHERS.items() for norm in norms])
def test_a_sample_without_finite_logits_harms_no_other_of_another_attack(name: str, norm: str) -> None:
    model, threat = Broken(), Threat(NORMS[norm], 0.05)
    x = 0.1 + 0.6 * Rng(1).uniform(torch.empty(5, 12))
    x[3, 0] = 1.0
    y = model.net(x).argmax(1)
    x_adv = OTHERS[name][0](threat=threat)(model, x, y, rng=Rng(0))
    assert threat.contains(x_adv, x).all()
    others = torch.arange(5) != 3
    alone = OTHERS[name][0](threat=threat)(model, x[others], Rows(y[others], torch.arange(5)[others]), rng=Rng(0))
    if name != "triage":  # which ranks the samples of a call
        torch.testing.assert_close(x_adv[others], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ATTACKS)
def test_results_in_half_precision_are_in_the_threat(name: str, norm: str, dtype: torch.dtype) -> None:
    model, threat = Scaled(12, 5, 10.0).to(dtype), Threat(NORMS[norm], 0.1)
    x = Rng(3).uniform(torch.empty(8, 12)).to(dtype)
    x_adv = ATTACKS[name](threat=threat, steps=6)(model, x, model(x).argmax(1), rng=Rng(0))
    assert x_adv.dtype == dtype
    assert threat.contains(x_adv, x).all()


class Broken(nn.Module):
    """Returns NaN for inputs whose first number is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Scaled(12, 5, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return torch.where((x.flatten(1)[:, :1] >= 0.9), torch.nan, logits)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_sample_without_finite_logits_is_reported_and_harms_no_other(name: str, norm: str) -> None:
    model, rng, threat = Broken(), Rng(1), Threat(NORMS[norm], 0.05)
    x = 0.1 + 0.6 * rng.uniform(torch.empty(8, 12))
    x[3, 0] = 1.0
    y = model.net(x).argmax(1)
    attack: Attack = ATTACKS[name](threat=threat, steps=6)
    x_adv = attack(model, x, y, rng=rng)
    assert threat.contains(x_adv, x).all()
    others = torch.arange(8) != 3
    alone = attack(model, x[others], Rows(y[others], torch.arange(8)[others]), rng=rng)
    torch.testing.assert_close(x_adv[others], alone, atol=1e-6, rtol=0)
    verdict = judge(model, x, x_adv, y, threat, Rng(2))
    assert verdict.label[3] == -1
    assert (verdict.label[others] >= 0).all()


def test_saturated_logits_do_not_stop_losses_of_logits() -> None:
    """Cross entropy has no gradient at such logits in float32; differences of logits have."""
    x, threat = Rng(0).uniform(torch.empty(40, 30)), Threat(LInf(), 0.1)
    model = Scaled(30, 10, 1000.0)
    y = model(x).argmax(1)
    fooled = {
        name: int((model(ATTACKS[name](threat=threat, steps=10)(model, x, y, rng=Rng(1))).argmax(1) != y).sum())
        for name in ("apgd-dlr", "apgd-worst", "multi_targeted", "pma", "apgd")
    }
    assert min(fooled[name] for name in fooled if name != "apgd") > fooled["apgd"]
