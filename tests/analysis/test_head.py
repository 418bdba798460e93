import numpy as np
import pytest
import torch

from holdfast.analysis.head import easy_share, head

RNG = np.random.default_rng(0)
FEATURES, Y, WEIGHT = RNG.normal(size=(40, 6)), RNG.integers(3, size=40), RNG.normal(size=(4, 6))


def test_lengths_and_angles_are_those_of_the_slow_loop():
    found = head(FEATURES, Y, WEIGHT, FEATURES @ WEIGHT.T)
    lengths = [np.sqrt(f @ f) for f in FEATURES]
    pairs = zip(FEATURES, Y, lengths, strict=True)
    angles = [np.degrees(np.arccos(f @ WEIGHT[k] / n / np.sqrt(WEIGHT[k] @ WEIGHT[k]))) for f, k, n in pairs]
    assert found.lengths.value == pytest.approx(np.mean(lengths))
    assert found.angles.value == pytest.approx(np.mean(angles))
    assert found.logits.value == pytest.approx(np.mean([np.linalg.norm(WEIGHT @ f) for f in FEATURES]))
    for k in range(3):
        assert found.class_lengths[k] == pytest.approx(np.mean([n for n, c in zip(lengths, Y, strict=True) if c == k]))
        assert found.class_angles[k] == pytest.approx(np.mean([a for a, c in zip(angles, Y, strict=True) if c == k]))
    assert np.isnan(found.class_angles[3])
    assert found.counts.tolist() == np.bincount(Y, minlength=4).tolist()


def test_the_easy_half_is_judged_by_gradients_of_autograd():
    logits = torch.from_numpy(RNG.normal(size=(40, 4))).requires_grad_()
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(Y), reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    norms = gradient.norm(dim=1)[losses.argsort()]
    found = easy_share(logits.detach().numpy(), Y)
    assert found.value == pytest.approx(float(norms[:20].sum() / norms.sum()))
    assert found.low < found.value < found.high


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": WEIGHT[:, :2]}, "same layer"),
        ({"logits": np.zeros((40, 2))}, "logits have shape"),
        ({"y": Y + 4}, "labels below"),
    ],
)
def test_bad_input(change, words):
    given = {"features": FEATURES, "y": Y, "weight": WEIGHT, "logits": FEATURES @ WEIGHT.T}
    with pytest.raises(ValueError, match=words):
        head(**given | change)
