"""Losses of logits and labels, compared with loops over Python floats."""

import math
from functools import partial
from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast.contracts import Loss, Outputs, Rows
from holdfast.losses.classification import (
    cross_entropy,
    dlr,
    logit_difference,
    probability_margin,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_logit_difference,
    toward_target,
)
from holdfast.rng import Rng

EVERY = [
    cross_entropy,
    logit_difference,
    dlr,
    probability_margin,
    targeted_cross_entropy,
    targeted_logit_difference,
    targeted_dlr,
]


def outputs(logits: Tensor) -> Outputs:
    return Outputs(logits, logits, logits)


def rows(y: list[int], target: list[int] | None = None) -> Rows:
    given = {} if target is None else {"target": torch.tensor(target)}
    return Rows(torch.tensor(y, dtype=torch.int64), torch.arange(len(y)), given)


@st.composite
def classified(draw: st.DrawFn, least: int = 2) -> tuple[list[list[float]], list[int], list[int]]:
    """Logits, labels and target labels; the logits are often all negative."""
    classes, b = draw(st.integers(least, 5)), draw(st.integers(1, 4))
    shift = draw(st.sampled_from([0.0, -1000.0, 1000.0]))
    label = st.integers(0, classes - 1)
    logits = [[shift + draw(st.floats(-30, 30)) for _ in range(classes)] for _ in range(b)]
    return logits, [draw(label) for _ in range(b)], [draw(label) for _ in range(b)]


def log_softmax(z: list[float]) -> list[float]:
    below = [v - max(z) for v in z]
    total = log(sum(exp(v) for v in below))
    return [v - total for v in below]


@given(classified(), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([0.5, 1.0, 15.0]))
def test_margin_and_temperature_change_the_logits_before_the_loss(
    case: tuple[list[list[float]], list[int], list[int]], margin: float, temperature: float
) -> None:
    logits, y, _ = case
    by_hand = [
        -log_softmax([(v - margin * (j == label)) / temperature for j, v in enumerate(z)])[label]
        for z, label in zip(logits, y, strict=True)
    ]
    out = outputs(torch.tensor(logits, dtype=torch.float64))
    found = cross_entropy(out, rows(y), margin=margin, temperature=temperature)
    assert found.tolist() == pytest.approx(by_hand, abs=1e-9)


@given(classified(), st.sampled_from([0.0, 0.1, 0.5]))
def test_cross_entropy_equals_a_loop(case: tuple[list[list[float]], list[int], list[int]], smoothing: float) -> None:
    logits, y, target = case
    out = outputs(torch.tensor(logits, dtype=torch.float64))
    by_hand = []
    for z, label in zip(logits, y, strict=True):
        wanted = [smoothing / len(z) + (1 - smoothing) * (j == label) for j in range(len(z))]
        by_hand.append(-sum(w * p for w, p in zip(wanted, log_softmax(z), strict=True)))
    assert cross_entropy(out, rows(y), smoothing=smoothing).tolist() == pytest.approx(by_hand, abs=1e-9)
    toward = [log_softmax(z)[t] for z, t in zip(logits, target, strict=True)]
    assert targeted_cross_entropy(out, rows(y, target)).tolist() == pytest.approx(toward, abs=1e-9)


@given(classified(), st.sampled_from([inf, 50.0, 0.0, 1.5]))
def test_logit_differences_equal_a_loop(case: tuple[list[list[float]], list[int], list[int]], kappa: float) -> None:
    logits, y, target = case
    out = outputs(torch.tensor(logits, dtype=torch.float64))
    wrong = [max(v for j, v in enumerate(z) if j != label) - z[label] for z, label in zip(logits, y, strict=True)]
    assert logit_difference(out, rows(y), kappa=kappa).tolist() == [min(v, kappa) for v in wrong]
    toward = [z[t] - z[label] for z, label, t in zip(logits, y, target, strict=True)]
    assert targeted_logit_difference(out, rows(y, target), kappa=kappa).tolist() == [min(v, kappa) for v in toward]


@given(classified())
def test_logit_difference_is_positive_exactly_when_misclassified(
    case: tuple[list[list[float]], list[int], list[int]],
) -> None:
    logits, y, _ = case
    z = torch.tensor(logits, dtype=torch.float64)
    found = logit_difference(outputs(z), rows(y))
    fooled = z.argmax(1) != torch.tensor(y)
    assert torch.equal((found > 0)[found != 0], fooled[found != 0])  # ties may go either way


def test_losses_of_a_hand_computed_example() -> None:
    out = outputs(torch.tensor([[0.0, log(3.0)], [-5.0, -7.0]]))
    assert cross_entropy(out, rows([1, 1])).tolist() == pytest.approx([log(4 / 3), log(1 + exp(2))])
    assert logit_difference(out, rows([1, 1])).tolist() == pytest.approx([-log(3.0), 2.0])
    assert logit_difference(out, rows([1, 1]), kappa=1.0).tolist() == pytest.approx([-log(3.0), 1.0])


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.__name__)
def test_losses_have_one_value_per_sample_and_pass_gradcheck(loss: Loss, rng: Rng) -> None:
    logits = 3 * rng.normal(torch.empty(5, 4, dtype=torch.float64)) - 20
    given = rows([0, 1, 2, 3, 0], [3, 2, 1, 0, 1])
    assert loss(outputs(logits), given).shape == (5,)
    assert torch.autograd.gradcheck(lambda z: loss(outputs(z), given), logits.requires_grad_())
    assert loss(outputs(logits[:0]), given.take(torch.arange(0))).shape == (0,)


def test_logit_difference_has_no_gradient_above_kappa() -> None:
    logits = torch.tensor([[60.0, 0.0, 1.0], [0.0, 0.5, -4.0]], requires_grad=True)
    logit_difference(outputs(logits), rows([1, 1]), kappa=50).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0, 0, 0], [1, -1, 0]]


@pytest.mark.parametrize("loss", [targeted_cross_entropy, targeted_logit_difference], ids=lambda loss: loss.__name__)
def test_missing_target_is_named_in_the_error(loss: Loss) -> None:
    with pytest.raises(KeyError, match="this loss needs 'target' for every sample but the rows were given nothing"):
        loss(outputs(torch.zeros(2, 3)), rows([0, 1]))


@pytest.mark.parametrize("name", ["smoothing", "margin", "temperature"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} (is )?{value}.* but cross entropy takes"):
        cross_entropy(outputs(torch.zeros(2, 3)), rows([0, 1]), **{name: value})


def test_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="a finite temperature above zero"):
        cross_entropy(outputs(torch.zeros(2, 3)), rows([0, 1]), temperature=0)


@given(classified(least=4))
def test_difference_of_logits_ratios_equal_a_loop(case: tuple[list[list[float]], list[int], list[int]]) -> None:
    logits, y, target = case
    out = outputs(torch.tensor(logits, dtype=torch.float64))
    free, aimed = [], []
    for z, label, t in zip(logits, y, target, strict=True):
        top = sorted(z, reverse=True)
        wrong = max(v for j, v in enumerate(z) if j != label)
        free.append((wrong - z[label]) / (top[0] - top[2] + 1e-12))
        aimed.append((z[t] - z[label]) / (top[0] - (top[2] + top[3]) / 2 + 1e-12))
    assert dlr(out, rows(y)).tolist() == pytest.approx(free)
    assert targeted_dlr(out, rows(y, target)).tolist() == pytest.approx(aimed)


@given(classified(), st.booleans())
def test_probability_margin_equals_a_loop(case: tuple[list[list[float]], list[int], list[int]], rescale: bool) -> None:
    logits, y, _ = case
    by_hand = []
    for z, label in zip(logits, y, strict=True):
        top = sorted(z, reverse=True)
        p = [exp(v) for v in log_softmax([v / (top[0] - top[1] + 1e-12) if rescale else v for v in z])]
        by_hand.append(max(v for j, v in enumerate(p) if j != label) - p[label])
    out = outputs(torch.tensor(logits, dtype=torch.float64))
    assert probability_margin(out, rows(y), rescale=rescale).tolist() == pytest.approx(by_hand, abs=1e-6)


@given(st.floats(0.01, 1000), st.floats(-50, 50))
def test_difference_of_logits_ratios_ignore_scale_and_shift(scale: float, shift: float) -> None:
    z = torch.tensor([[1.0, 4.0, -2.0, 0.5, 3.0], [-3.0, -1.0, 0.0, 2.0, 2.5]], dtype=torch.float64)
    given = rows([1, 0], [2, 4])
    for loss in (dlr, targeted_dlr):
        torch.testing.assert_close(loss(outputs(scale * z + shift), given), loss(outputs(z), given), rtol=1e-6, atol=0)


def test_ratios_of_equal_logits_are_finite() -> None:
    z = torch.zeros(2, 5, requires_grad=True)
    for loss in (dlr, targeted_dlr, probability_margin, partial(probability_margin, rescale=True)):
        value = loss(outputs(z), rows([0, 1], [1, 0]))
        (grad,) = torch.autograd.grad(value.sum(), z)
        assert value.isfinite().all()
        assert grad.isfinite().all()


@pytest.mark.parametrize(("loss", "name", "least"), [(dlr, "DLR", 3), (targeted_dlr, "targeted DLR", 4)])
def test_ratios_with_too_few_classes_are_refused(loss: Loss, name: str, least: int) -> None:
    z = torch.zeros(2, least)
    loss(outputs(z), rows([0, 1], [1, 0]))
    with pytest.raises(ValueError, match=f"{name} needs at least {least} classes but the model has {least - 1}; use"):
        loss(outputs(z[:, 1:]), rows([0, 1], [1, 0]))


@given(classified())
def test_the_loss_toward_a_target_is_positive_exactly_when_the_target_is_predicted(
    case: tuple[list[list[float]], list[int], list[int]],
) -> None:
    logits, y, target = case
    z = torch.tensor(logits, dtype=torch.float64)
    found = toward_target(logit_difference)(outputs(z), rows(y, target))
    reached = z.argmax(1) == torch.tensor(target)
    assert torch.equal((found > 0)[found != 0], reached[found != 0])  # ties may go either way
    for loss in (targeted_cross_entropy, targeted_dlr, partial(targeted_logit_difference, kappa=1.0)):
        assert toward_target(loss) is loss
    assert toward_target(cross_entropy)(outputs(z), rows(y, target)).tolist() == pytest.approx(
        targeted_cross_entropy(outputs(z), rows(y, target)).tolist()
    )
