"""Losses between two passes against loops over plain numbers."""

import pytest
import torch
from torch import Tensor

from holdfast.contracts import Loss, Outputs, Rows
from holdfast.losses.consistency import feature_matching, logit_pairing
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


@pytest.mark.parametrize(("loss", "width", "name"), [(logit_pairing, 3, "logits"), (feature_matching, 5, "features")])
def test_both_passes_get_gradients(loss: Loss, width: int, name: str, rng: Rng) -> None:
    def value(ours: Tensor, theirs: Tensor) -> Tensor:
        return loss(Outputs(ours, ours, ours), Rows(torch.arange(4), torch.arange(4), {name: theirs}))

    ours, theirs = rng.normal(torch.empty(2, 4, width, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(value, (ours, theirs))
    toward, away = torch.autograd.grad(value(ours, theirs).sum(), (ours, theirs))
    assert torch.equal(toward, -away)
    assert toward.abs().min() > 0


def test_a_missing_pass_is_named() -> None:
    out, rows = Outputs(*torch.zeros(3, 2, 2)), Rows(torch.arange(2), torch.arange(2), {"x": torch.zeros(2)})
    with pytest.raises(KeyError, match="this loss needs 'logits' for every sample but the rows were given x"):
        logit_pairing(out, rows)
