"""The loss under noise in a plain loop, and the noise against its distribution."""

import by_hand
import pytest
import torch
from torch import nn

from holdfast.contracts import Batch
from holdfast.methods.gaussian import Gaussian
from holdfast.rng import Rng


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_total_is_the_mean_cross_entropy_of_the_noisy_samples(smoothing, rng):
    model, batch = by_hand.network(), by_hand.samples()
    passes = by_hand.Passes().watch(model)
    terms = Gaussian(sigma=0.5, smoothing=smoothing)(model, batch, progress=0.5, rng=rng)
    [noisy] = passes.x
    assert not torch.equal(noisy, batch.x)
    expected = by_hand.cross_entropy(by_hand.logits(model, noisy), batch.y, smoothing)
    assert terms.total.item() == pytest.approx(expected, rel=1e-12)


def test_noise_has_the_standard_deviation_sigma_and_is_new_for_each_sample_and_step(rng):
    batch = Batch(torch.full((40, 2, 500), 0.5), torch.zeros(40, dtype=torch.int64), torch.arange(40))
    seen = []

    class Seen(nn.Module):
        def forward(self, x):
            seen.append(x - 0.5)
            return x[:, :, 0]

    for step in range(2):
        Gaussian(sigma=0.3)(Seen(), batch, progress=0.5, rng=rng.fork(step))
    for noise in seen:
        assert noise.std().item() == pytest.approx(0.3, rel=0.02)  # of 40,000 numbers
        assert abs(noise.mean().item()) < 0.006
        assert len(noise[:, 0, 0].unique()) == 40
    assert not torch.equal(*seen)


def test_the_same_rng_gives_the_same_noise():
    model, batch = by_hand.network(), by_hand.samples()
    totals = [Gaussian()(model, batch, progress=0.5, rng=Rng(3)).total.item() for _ in range(2)]
    assert totals[0] == totals[1]


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("inf"), float("nan")])
def test_noise_without_a_deviation_is_refused(sigma):
    with pytest.raises(ValueError, match=r"sigma is .* above 0, e\.g\. 0\.25"):
        Gaussian(sigma=sigma)
