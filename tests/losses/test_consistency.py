"""Losses between two forward passes, compared with loops over Python floats."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from holdfast.contracts import Loss, Outputs, Rows
from holdfast.losses.consistency import feature_matching, kl_divergence, logit_pairing
from holdfast.rng import Rng


def case(rng: Rng) -> tuple[Outputs, Rows]:
    logits, features = (rng.fork(n).normal(torch.empty(4, n, dtype=torch.float64)) for n in (3, 5))
    given = {"logits": rng.fork("clean").normal(logits), "features": rng.fork("clean").normal(features)}
    return Outputs(features, features, logits), Rows(torch.arange(4), torch.arange(4), given)


def test_logit_pairing_is_the_mean_over_classes(rng: Rng) -> None:
    out, rows = case(rng)
    pairs = zip(out.logits.tolist(), rows["logits"].tolist(), strict=True)
    by_hand = [sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) / 3 for pair in pairs]
    assert logit_pairing(out, rows).tolist() == pytest.approx(by_hand, abs=1e-12)


def test_feature_matching_is_the_sum_over_dimensions(rng: Rng) -> None:
    out, rows = case(rng)
    pairs = zip(out.features.tolist(), rows["features"].tolist(), strict=True)
    by_hand = [sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in pairs]
    assert feature_matching(out, rows).tolist() == pytest.approx(by_hand, abs=1e-12)


def softmax(z: list[float]) -> list[float]:
    total = sum(exp(v) for v in z)
    return [exp(v) / total for v in z]


def test_kl_divergence_goes_from_the_given_logits_to_those_of_the_pass(rng: Rng) -> None:
    out, rows = case(rng)
    pairs = [(softmax(p), softmax(q)) for p, q in zip(rows["logits"].tolist(), out.logits.tolist(), strict=True)]
    by_hand = [sum(a * (log(a) - log(b)) for a, b in zip(p, q, strict=True)) for p, q in pairs]
    assert kl_divergence(out, rows).tolist() == pytest.approx(by_hand, abs=1e-12)
    same = Rows(rows.y, rows.index, {"logits": out.logits})
    assert kl_divergence(out, same).tolist() == [0, 0, 0, 0]


def test_kl_divergence_has_finite_gradients_for_both_passes_where_probabilities_underflow() -> None:
    def value(ours: Tensor, theirs: Tensor) -> Tensor:
        return kl_divergence(Outputs(ours, ours, ours), Rows(torch.arange(2), torch.arange(2), {"logits": theirs}))

    ours = torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, 3.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (ours, ours.detach().flip(0).requires_grad_()))
    for theirs in ([[-5e3, 0.0, 5e3]] * 2, [[0.0, 1e4, -1e4]] * 2):
        given = torch.tensor(theirs, dtype=torch.float64, requires_grad=True)
        assert given.softmax(1).min() == 0
        found = torch.autograd.grad(value(ours, given).sum() + value(given, ours).sum(), (ours, given))
        assert all(grad.isfinite().all() for grad in found)


@pytest.mark.parametrize(("loss", "width", "name"), [(logit_pairing, 3, "logits"), (feature_matching, 5, "features")])
def test_gradients_flow_to_both_passes(loss: Loss, width: int, name: str, rng: Rng) -> None:
    def value(ours: Tensor, theirs: Tensor) -> Tensor:
        return loss(Outputs(ours, ours, ours), Rows(torch.arange(4), torch.arange(4), {name: theirs}))

    ours, theirs = rng.normal(torch.empty(2, 4, width, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(value, (ours, theirs))
    toward, away = torch.autograd.grad(value(ours, theirs).sum(), (ours, theirs))
    assert torch.equal(toward, -away)
    assert toward.abs().min() > 0


def test_missing_outputs_are_named_in_the_error() -> None:
    out, rows = Outputs(*torch.zeros(3, 2, 2)), Rows(torch.arange(2), torch.arange(2), {"x": torch.zeros(2)})
    with pytest.raises(KeyError, match="this loss needs 'logits' for every sample but the rows were given x"):
        logit_pairing(out, rows)
