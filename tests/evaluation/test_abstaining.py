"""A network that abstains: an abstention is an error without attack and no success of an attack."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast import PGD, Abstaining, Classifier, Detector, Evasion, LInf, Rng, Threat
from holdfast.evaluation.judge import judge

THREAT = Threat(LInf(), 0.3)


@pytest.fixture(scope="module")
def wrapped() -> Abstaining:
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3), nn.LayerNorm(6))
    x, y = samples(model, 1)
    with torch.no_grad():
        features = model.outputs(x).features
    return Abstaining(model, Detector.fit(features, y).calibrate(features, 0.2))


def samples(model: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(80, 6, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return x, model(x).argmax(1)


def test_the_judge_counts_wrong_and_accepted_points_alone(wrapped: Abstaining) -> None:
    x, y = samples(wrapped, 2)
    x_adv = PGD(threat=THREAT, steps=10)(wrapped, x, y, rng=Rng(0))
    verdict = judge(wrapped, x, x_adv, y, THREAT, Rng(1))
    wrong, rejected = wrapped(x_adv).argmax(1) != y, wrapped.abstains(x_adv)
    assert (wrong & rejected).any()
    assert (wrong & ~rejected).any()
    assert torch.equal(verdict.fooled, wrong & ~rejected)
    assert torch.equal(judge(wrapped.model, x, x_adv, y, THREAT, Rng(1)).fooled, wrong)


def test_records_and_table_count_abstentions(wrapped: Abstaining) -> None:
    x, y = samples(wrapped, 2)
    y[:5] = (y[:5] + 1) % 3
    blind = PGD(threat=THREAT, steps=10)
    aware = PGD(threat=THREAT, steps=10, loss=Evasion(wrapped.detector.score), keep="worst")
    result = holdfast.evaluate(wrapped, x, y, threat=THREAT, attacks={"blind": blind, "aware": aware}, progress=False)
    (records,) = result.records.values()
    rejected, right = wrapped.abstains(x).numpy(), (wrapped(x).argmax(1) == y).numpy()
    assert np.array_equal(records.columns["abstained"], rejected)
    assert np.array_equal(records.correct, right & ~rejected)
    assert result.clean_accuracy.successes == (right & ~rejected).sum()
    for name in ("blind", "aware"):
        fooled = records.fooled_within(name, THREAT.eps)
        assert fooled[~right | rejected].all()
        assert (records.columns[f"distance:linf:{name}"][~right | rejected] == 0).all()
    assert records.fooled_within("aware", 0.3).sum() > records.fooled_within("blind", 0.3).sum()
    assert f"abstains on {100 * rejected.mean():.1f} %" in str(result)


def test_other_networks_have_no_such_column(wrapped: Abstaining) -> None:
    x, y = samples(wrapped, 2)
    attack = PGD(threat=THREAT, steps=2)
    result = holdfast.evaluate(wrapped.model, x, y, threat=THREAT, attacks={"PGD": attack}, progress=False)
    (records,) = result.records.values()
    assert records.abstained is None
    assert "abstains" not in str(result)
