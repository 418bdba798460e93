"""Gradient attacks on odd inputs and models: whatever happens, results are inside the threat and finite."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.attacks.apgd import APGD
from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.attacks.pgd import PGD
from holdfast.attacks.pma import PMA
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


class Scaled(nn.Module):
    """A linear model on flattened inputs whose logits are multiplied by ``scale``."""

    def __init__(self, numbers: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(Rng(classes).normal(torch.empty(classes, numbers)))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x - 0.5).flatten(1) @ self.weight.T


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
    x = rng.uniform(torch.empty(6, *shape))
    x = {"random": x, "constant": torch.full_like(x, 0.25), "duplicated": x[:1].repeat(6, *[1] * len(shape))}.get(
        kind, x.round()
    )
    model, threat = Scaled(x[0].numel(), classes, scale), Threat(NORMS[norm], eps)
    y = model(x).argmax(1)
    x_adv = ATTACKS[name](threat=threat, steps=steps)(model, x, y, rng=rng)
    assert threat.contains(x_adv, x).all()
    if eps == 0:
        assert torch.equal(x_adv, x)


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
